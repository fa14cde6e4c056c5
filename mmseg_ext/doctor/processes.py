"""Several processes: the gradient that DistributedDataParallel sums, against one process.

One process for each GPU over nccl, with synchronised batch norm; without GPUs two over gloo, with
group norm, since synchronised batch norm needs a GPU.
"""

import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mmseg_ext.doctor import Finding, within
from mmseg_ext.layers import ExternalAttention2d

TIMEOUT = timedelta(seconds=45)  # for the processes to find each other, and for each collective
CHANNELS = 16
PER_PROCESS = 2  # images


def _model(synchronised: bool) -> nn.Module:
    """A convolution, external attention and a classifier, with norms for the group."""
    torch.manual_seed(0)
    norm = nn.SyncBatchNorm if synchronised else partial(nn.GroupNorm, 4)
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False),
        norm(CHANNELS),
        nn.ReLU(),
        ExternalAttention2d(CHANNELS, memory_size=8, norm_layer=norm),
        nn.Conv2d(CHANNELS, 5, 1),
    )


def _images(world: int) -> Tensor:
    return torch.randn(world * PER_PROCESS, 3, 12, 12, generator=torch.Generator().manual_seed(3))


def _gradients(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    model(images).square().mean().backward()
    return {name.removeprefix("module."): p.grad.cpu() for name, p in model.named_parameters()}


def _worker(rank: int, world: int, cuda: bool, folder: str) -> None:
    place = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=TIMEOUT,
    )
    model = DistributedDataParallel(_model(cuda).to(place), device_ids=[rank] if cuda else None)
    mine = _images(world)[rank * PER_PROCESS : (rank + 1) * PER_PROCESS].to(place)
    gradients = _gradients(model, mine)
    if rank == 0:
        torch.save(gradients, f"{folder}/gradients.pt")
    dist.barrier()
    dist.destroy_process_group()


def group_gradients(device: torch.device) -> tuple[dict[str, Tensor], int]:
    """Rank 0's summed gradients, and the number of processes."""
    cuda = device.type == "cuda"
    world = torch.cuda.device_count() if cuda else 2
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_worker, (world, cuda, folder), nprocs=world)
        return torch.load(Path(folder, "gradients.pt"), weights_only=True), world


def check_gradients(device: torch.device) -> Finding:
    """The group's gradient against one process with the whole batch."""
    gradients, world = group_gradients(device)
    cuda = device.type == "cuda"
    expected = _gradients(_model(cuda).to(device), _images(world).to(device))
    largest = max(float(g.abs().max()) for g in expected.values())
    error = max(float((gradients[k] - g).abs().max()) / largest for k, g in expected.items())
    how = "nccl, SyncBN" if cuda else "gloo, group norm (SyncBN needs a GPU)"
    return within(error, 1e-5, f" with {world} processes over {how}")
