"""Several processes: the gradient that DistributedDataParallel sums, against one process.

One process for each GPU over nccl, with synchronised batch norm; without GPUs two over gloo, with
group norm, since synchronised batch norm needs a GPU.
"""

import os
import socket
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mmseg_ext.doctor.findings import Finding
from mmseg_ext.layers import ExternalAttention2d

SECONDS = 90  # for all processes to start, agree and end
CHANNELS = 16
PER_PROCESS = 2  # images


def _model(synchronised: bool) -> nn.Module:
    """A convolution, external attention and a classifier, with norms for the group."""
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
    return {name: p.grad.cpu() for name, p in model.named_parameters()}


def _worker(rank: int, world: int, device: str, port: int, path: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    cuda = device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS / 2),
    )
    torch.manual_seed(0)
    place = torch.device(device, rank) if cuda else torch.device("cpu")
    model = DistributedDataParallel(
        _model(synchronised=cuda).to(place), device_ids=[rank] if cuda else None
    )
    mine = _images(world)[rank * PER_PROCESS : (rank + 1) * PER_PROCESS].to(place)
    gradients = _gradients(model, mine)
    if rank == 0:
        torch.save({k.removeprefix("module."): v for k, v in gradients.items()}, path)
    dist.barrier()
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def group_gradients(device: torch.device) -> tuple[dict[str, Tensor], int]:
    """Rank 0's summed gradients, and the number of processes.

    Raises:
        TimeoutError: where the processes do not end in time.
    """
    world = torch.cuda.device_count() if device.type == "cuda" else 2
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gradients.pt")
        context = torch.multiprocessing.start_processes(
            _worker,
            (world, device.type, _free_port(), path),
            nprocs=world,
            join=False,
            start_method="spawn",
        )
        try:
            end = time.monotonic() + SECONDS
            while not context.join(timeout=max(0.0, end - time.monotonic())):  # one process's end
                if time.monotonic() >= end:
                    raise TimeoutError(f"{world} processes did not end within {SECONDS} s")
        finally:
            for process in context.processes:
                process.kill()
        return torch.load(path, weights_only=True), world


def check_gradients(device: torch.device) -> Finding:
    """The group's gradient against one process with the whole batch."""
    gradients, world = group_gradients(device)
    torch.manual_seed(0)
    cuda = device.type == "cuda"
    model = _model(synchronised=cuda).to(device)
    expected = _gradients(model, _images(world).to(device))
    largest = max(float(g.abs().max()) for g in expected.values())
    error = max(float((gradients[k] - g).abs().max()) / largest for k, g in expected.items())
    how = "nccl, SyncBN" if cuda else "gloo, group norm (SyncBN needs a GPU)"
    figure = f"{world} processes over {how}: {error:.1e}, bound 1.0e-05"
    return Finding("ok" if error <= 1e-5 else "FAIL", figure)
