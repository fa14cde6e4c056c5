"""Whole models, small: training steps, a run that is resumed, and images a second of a config.

Imports the mm stack where a function is called, so that the layers can be checked without it.
"""

import contextlib
import io
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from mmseg_ext.cost.contest import paired_times
from mmseg_ext.doctor.findings import Finding, Unavailable

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
    training step), 'trace' (the same as far as a compiler's input) or 'deterministic'.
    """
    from mmengine.optim import OptimWrapper
    from mmseg.structures import SegDataSample

    from mmseg_ext.engine import PortableAmpOptimWrapper

    torch.manual_seed(0)
    model = _segmentor(MODELS[name]).to(device).train()
    images = torch.randn(2, 3, SIZE, SIZE, device=device)
    samples = []
    for image in images:
        coarse = torch.randint(CLASSES, (1, 8, 8), device=device)
        labels = coarse.repeat_interleave(8, 1).repeat_interleave(8, 2)
        sample = SegDataSample(metainfo=dict(img_shape=image.shape[1:]))
        sample.set_data(dict(gt_sem_seg=_pixels(labels)))
        samples.append(sample)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if mode == "amp":
        wrapper = PortableAmpOptimWrapper(dtype="bfloat16", optimizer=optimizer)
    else:
        wrapper = OptimWrapper(optimizer)
    backend = {"compile": "inductor", "trace": "aot_eager"}.get(mode)
    step = torch.compile(model.train_step, backend=backend) if backend else model.train_step
    batch = dict(inputs=images, data_samples=samples)
    losses = []
    with _deterministic(mode == "deterministic"):
        for _ in range(steps):
            losses.append(float(step(batch, wrapper)["loss"].detach()))
    return losses


def _pixels(labels: torch.Tensor):
    from mmengine.structures import PixelData

    return PixelData(data=labels)


@contextmanager
def _deterministic(enabled: bool) -> Iterator[None]:
    if not enabled:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Code:
    """What a pickle can hold that runs when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def check_safe_loading() -> Finding:
    """A file that would run code is refused, and its code does not run."""
    from mmseg_ext.checkpoint import read_state_dict
    from mmseg_ext.errors import UnsafeCheckpoint

    with tempfile.TemporaryDirectory() as folder:
        ran, path = Path(folder, "ran"), Path(folder, "weights.pth")
        torch.save({"state_dict": {"weight": torch.ones(2)}, "meta": _Code(ran)}, path)
        try:
            read_state_dict(path)
            refused = False
        except UnsafeCheckpoint:
            refused = True
        if ran.exists() or not refused:
            return Finding("FAIL", "a file that runs code was read" if not refused else "code ran")
    return Finding("ok", "a file that would run code is refused")


def _run_config(folder: Path, work_dir: str, iterations: int, resume: bool):
    """A training of the embedded scenes with EANet, of this many iterations in all."""
    from mmengine.config import Config

    model = dict(type="EncoderDecoder", **MODELS["EAHead"], test_cfg=dict(mode="whole"))
    model["decode_head"] = {**model["decode_head"], "num_classes": 6}
    model["data_preprocessor"] = dict(
        type="SegDataPreProcessor", mean=[120.0] * 3, std=[60.0] * 3, size=(SIZE, SIZE)
    )
    pipeline = [
        dict(type="CheckedLoadImage"),
        dict(type="CheckedLoadAnnotations"),
        dict(type="RandomFlip", prob=0.5),
        dict(type="PackSegInputs"),
    ]
    return Config(
        dict(
            model=model,
            work_dir=str(folder / work_dir),
            default_scope="mmseg",
            experiment_name=f"doctor_{work_dir}_{iterations}",
            train_dataloader=dict(
                batch_size=2,
                num_workers=0,
                sampler=dict(type="InfiniteSampler", shuffle=True),
                dataset=dict(
                    type="ShapesDataset",
                    data_root=str(folder / "shapes"),
                    recipe=dict(seed=0, train=8, val=2, size=SIZE),
                    pipeline=pipeline,
                ),
            ),
            optim_wrapper=dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=1e-3)),
            train_cfg=dict(type="IterBasedTrainLoop", max_iters=iterations, val_interval=100),
            default_hooks=dict(
                checkpoint=dict(type="DurableCheckpointHook", by_epoch=False, interval=2),
                logger=dict(type="LoggerHook", interval=100, log_metric_by_epoch=False),
            ),
            randomness=dict(seed=0),
            log_level="ERROR",
            log_processor=dict(by_epoch=False),
            resume=resume,
        )
    )


def check_resume(device: torch.device) -> Finding:
    """Four iterations against two, a checkpoint, a resume and two more: every tensor equal."""
    from mmengine.registry import RUNNERS

    from mmseg_ext import register_all_modules
    from mmseg_ext.checkpoint import read_state_dict

    register_all_modules()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        with _deterministic(True):
            for work_dir, iterations, resume in (("a", 4, False), ("b", 2, False), ("b", 4, True)):
                config = _run_config(folder, work_dir, iterations, resume)
                torch.manual_seed(0)
                RUNNERS.get("DurableRunner").from_cfg(config).train()
        whole, resumed = (read_state_dict(folder / n / "iter_4.pth") for n in "ab")
        size = (folder / "a" / "iter_4.pth").stat().st_size
    different = [k for k in whole if not torch.equal(whole[k], resumed[k])]
    if different:
        return Finding("FAIL", f"{len(different)} of {len(whole)} tensors differ, {different[0]}")
    return Finding("ok", f"{len(whole)} tensors equal bit for bit, {size / 2**20:.1f} MiB written")


def check_config(path: str, device: torch.device) -> Finding:
    """Images a second of a config's model at its crop size: a training step and inference."""
    from mmengine.config import Config
    from mmengine.model import revert_sync_batchnorm

    if not Path(path).is_file():
        raise Unavailable(f"there is no file {path!r}")
    config = Config.fromfile(path).model
    size = tuple(config.get("data_preprocessor", {}).get("size") or (512, 512))
    parts = {k: v for k, v in config.items() if k.endswith("head") or k in ("backbone", "neck")}
    model = revert_sync_batchnorm(_segmentor(parts)).to(device)
    images = torch.randn(2, 3, *size, device=device)

    def training() -> None:
        model.zero_grad(set_to_none=True)
        outputs = model.decode_head.forward(model.extract_feat(images))
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        sum(o.float().square().mean() for o in outputs).backward()

    @torch.no_grad()
    def inference() -> None:
        model.encode_decode(images, [dict(ori_shape=size, img_shape=size)] * len(images))

    figures = []
    for name, run in (("training", training), ("inference", inference)):
        model.train(name == "training")
        seconds = statistics.median(paired_times({name: run}, rounds=3)[name])
        figures.append(f"{name} {len(images) / seconds:.2f} images/s")
    return Finding("ok", f"{', '.join(figures)} at {size[0]}x{size[1]}, batch {len(images)}")
