"""Small runs: training steps of whole models, a run that is resumed, and a gradient of a group.

Each function of a whole model imports the mm stack when it is called, so that the layers can be
checked without it.

A group is one process for each GPU over nccl, with synchronised batch norm; without GPUs two over
gloo, with group norm, since synchronised batch norm needs a GPU.
"""

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mmseg_ext.doctor import Finding, Unavailable, within
from mmseg_ext.environment import configs_folder
from mmseg_ext.layers import ExternalAttention2d

SIZE = 64
CLASSES = 4
_NORM = dict(type="GN", num_groups=4)
_RESNET = dict(
    type="ResNetV1c",
    depth=18,
    num_stages=1,  # the heads are what is checked, and what a compiler's time should go to
    base_channels=16,
    stem_channels=16,
    out_indices=(0,),
    strides=(1,),
    dilations=(1,),
    norm_cfg=_NORM,
)
_HEAD = dict(
    in_channels=16, in_index=0, channels=16, num_classes=CLASSES, norm_cfg=_NORM, dropout_ratio=0.0
)


def _with_head(head: dict) -> dict:
    return dict(backbone=_RESNET, decode_head={**_HEAD, **head})


def _with_backbone(backbone: dict, channels: int) -> dict:
    head = dict(type="FCNHead", num_convs=1, in_channels=channels, in_index=-1)
    return dict(backbone=backbone, decode_head={**_HEAD, **head})


# Every head and every backbone, as the parts of a segmentor.
MODELS: dict[str, dict] = {
    "EAHead": _with_head(dict(type="EAHead", ea_channels=32, memory_size=16)),
    "JSegEAHead": _with_head(dict(type="JSegEAHead", memory_size=16)),
    "DANetEAHead": _with_head(dict(type="DANetEAHead", memory_size=16)),
    "MaSAHead": _with_head(dict(type="MaSAHead", num_heads=4)),
    "RMT": _with_backbone(dict(type="RMT", arch="tiny", drop_path_rate=0.0), 512),
    "LambdaResNet": _with_backbone(dict(type="LambdaResNet", depth=(1, 1, 1, 1)), 2048),
    "DeepViT": _with_backbone(dict(type="DeepViT", arch="16b", img_size=SIZE), 384),
    "EAMLP": _with_backbone(dict(type="EAMLP", arch="7", img_size=SIZE), 256),
}


def _segmentor(parts: dict) -> nn.Module:
    from mmengine.registry import DefaultScope
    from mmseg.registry import MODELS as registry

    from mmseg_ext import register_all_modules

    register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope("mmseg"):
        return registry.build(dict(type="EncoderDecoder", **parts, test_cfg=dict(mode="whole")))


def train_steps(name: str, mode: str, device: torch.device, steps: int = 3) -> list[float]:
    """Losses of some steps of AdamW on one batch.

    `mode` is 'amp' (autocast as `--amp` has it), 'compile' (as `cfg.compile = True`: the whole
    training step) or 'deterministic'.

    Raises:
        Unavailable: to compile where the compiler of this device is missing.
    """
    from mmengine.optim import OptimWrapper
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    from mmseg_ext.engine import PortableAmpOptimWrapper

    if mode == "compile":
        _require_compiler(device)
    torch.manual_seed(0)
    model = _segmentor(MODELS[name]).to(device).train()
    images = torch.randn(2, 3, SIZE, SIZE, device=device)
    samples = []
    for image in images:
        coarse = torch.randint(CLASSES, (1, 8, 8), device=device)
        labels = coarse.repeat_interleave(8, 1).repeat_interleave(8, 2)  # (1, SIZE, SIZE)
        sample = SegDataSample(metainfo=dict(img_shape=image.shape[1:]))
        sample.gt_sem_seg = PixelData(data=labels)
        samples.append(sample)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if mode == "amp":
        wrapper = PortableAmpOptimWrapper(dtype="bfloat16", optimizer=optimizer)
    else:
        wrapper = OptimWrapper(optimizer)
    step = torch.compile(model.train_step) if mode == "compile" else model.train_step
    batch = dict(inputs=images, data_samples=samples)
    with _deterministic(mode == "deterministic"):
        return [float(step(batch, wrapper)["loss"].detach()) for _ in range(steps)]


def _require_compiler(device: torch.device) -> None:
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise Unavailable("torch.compile needs Triton, which is not installed")
    if device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Unavailable("torch.compile needs a C++ compiler: install g++, or name one in CXX")


@contextmanager
def _deterministic(enabled: bool = True) -> Iterator[None]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(enabled)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _train_shapes(folder: Path, work_dir: str, iterations: int, resume: bool = False) -> None:
    """Train the demo's config in `folder / work_dir` on a few scenes, without validation."""
    from mmengine.config import Config
    from mmengine.registry import RUNNERS

    config = Config.fromfile(str(configs_folder() / "ea_r18_shapes.py"))
    loader = dict(batch_size=2, num_workers=0, persistent_workers=False)
    scenes = dict(data_root=str(folder / "shapes"), recipe=dict(train=8, val=2))
    config.merge_from_dict(
        dict(
            train_dataloader=dict(**loader, dataset=scenes),
            train_cfg=dict(max_iters=iterations),
            default_hooks=dict(checkpoint=dict(interval=2, max_keep_ckpts=2)),
            log_level="ERROR",
        )
    )
    config.val_dataloader = config.val_evaluator = config.val_cfg = None
    config.test_dataloader = config.test_evaluator = config.test_cfg = None
    config.work_dir, config.resume = str(folder / work_dir), resume
    config.experiment_name = f"doctor_{work_dir}_{iterations}"
    torch.manual_seed(0)
    RUNNERS.build(config).train()


def check_resume() -> Finding:
    """Four iterations against two, a checkpoint, a resume and two more: every tensor equal."""
    from mmseg_ext import register_all_modules
    from mmseg_ext.checkpoint import read_state_dict

    register_all_modules()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        with _deterministic():
            _train_shapes(folder, "whole", 4)
            _train_shapes(folder, "resumed", 2)
            _train_shapes(folder, "resumed", 4, resume=True)
        whole, resumed = (read_state_dict(folder / n / "iter_4.pth") for n in ("whole", "resumed"))
    different = [k for k in whole if not torch.equal(whole[k], resumed[k])]
    if different:
        return Finding("FAIL", f"{len(different)} of {len(whole)} tensors differ, {different[0]}")
    return Finding("ok", f"{len(whole)} tensors equal bit for bit")


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
