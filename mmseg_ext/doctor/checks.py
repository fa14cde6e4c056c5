"""The checks of an installation, in the order of the output."""

import contextlib
import io
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmseg_ext.cost.timing import compare_times, inference_step, training_step
from mmseg_ext.doctor import Check, Finding, fixtures
from mmseg_ext.environment import configs_folder, describe, stack_problem
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ManhattanAttention, ReAttention
from mmseg_ext.layers.self_attention import SelfAttention


def perform(check: Check) -> Finding:
    """Run the check; an exception is a failure."""
    try:
        return check.run()
    except Exception as error:
        return Finding("FAIL", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def checks(device: torch.device, quick: bool = False) -> Iterator[Check]:
    """Yield every check for `device`; with `quick`, only one backbone and fewer repetitions."""
    problem = stack_problem()
    for name, value in describe():
        missing = value.startswith("not usable") or value == problem
        finding = Finding("skipped" if missing else "ok", value)
        yield Check("environment", name, lambda finding=finding: finding)
    backbones = [] if problem else list(fixtures.BACKBONES)[: 1 if quick else None]
    for name in [*fixtures.LAYERS, *backbones]:
        for precision in PRECISIONS:
            if device.type == "cuda" or not precision.tf32:
                run = partial(check_parity, name, precision, device)
                yield Check("parity", f"{name}, {precision.name}", run)
    for name, (build, shape) in FAST_FORMS.items():
        yield Check("speed", name, partial(check_speed, build, shape, device, 3 if quick else 10))
    for name, (build, shape) in ATTENTION.items():
        yield Check("attention kernels", name, partial(check_kernels, build, shape, device))
    if problem is not None:
        yield Check("stack", "training, resume", lambda: Finding("skipped", problem))
        return
    for name, parts in SEGMENTORS.items():
        yield Check("training", name, partial(check_training, parts, device))
    yield Check("files", "resume", check_resume)


class Precision(NamedTuple):
    """The autocast type, TF32, and the largest error that is accepted.

    The error is the largest difference over the largest value. Under autocast, 1.5 times the error
    of the published order of operations is accepted, too.
    """

    name: str
    autocast: torch.dtype | None
    tf32: bool
    bound: float


PRECISIONS = (
    Precision("float32", None, False, 1e-5),
    Precision("TF32", None, True, 2e-2),
    Precision("bfloat16", torch.bfloat16, False, 0.15),
    Precision("float16", torch.float16, False, 0.05),
)


def check_parity(name: str, precision: Precision, device: torch.device) -> Finding:
    """Compare a layer or backbone with the outputs of the published code."""
    autocast = nullcontext()
    if precision.autocast is not None:
        autocast = torch.autocast(device.type, dtype=precision.autocast)
    with torch.no_grad(), _tf32(precision.tf32), autocast:
        for case in fixtures.cases(name):
            module, x = case.module.to(device), case.x.to(device)
            error, bound = case.error(module(x)), precision.bound
            figure = f"error {error:.1e}"
            if precision.autocast is not None and hasattr(module, "published_order"):
                plain = case.error(module.published_order(x))
                bound = max(bound, 1.5 * plain)
                figure += f" (published order {plain:.1e})"
            if not error <= bound:
                return Finding("FAIL", f"{figure}, bound {bound:.1e}")
    return Finding("ok", f"{figure}, bound {bound:.1e}")


@contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


Layer = tuple[Callable[[], nn.Module], tuple[int, ...]]  # and the shape of its input
FAST_FORMS: dict[str, Layer] = {
    "external attention": (lambda: ExternalAttention2d(256), (2, 256, 64, 64)),
    "lambda layer": (lambda: LambdaLayer(64, receptive_field=23), (2, 64, 64, 64)),
    "re-attention": (lambda: ReAttention(128, 8), (2, 785, 128)),
}


def check_speed(
    build: Callable[[], nn.Module], shape: tuple[int, ...], device: torch.device, rounds: int
) -> Finding:
    """Time a layer against its published order of operations: ratio, and peak memory."""
    torch.manual_seed(0)
    module, x = build().to(device), torch.randn(shape, device=device)
    forms = {"ours": module, "published": module.published_order}
    steps = {
        "training": {k: training_step(f, x, module.parameters()) for k, f in forms.items()},
        "inference": {k: inference_step(f, x) for k, f in forms.items()},
    }
    figures, ratios = [], []
    for mode, functions in steps.items():
        module.train(mode == "training")
        ours, published = compare_times(functions, rounds, device).values()
        ratios.append(published.ratio)
        figure = f"{mode} {ours.ms:.1f} ms, x{published.ratio:.2f}"
        if not math.isnan(ours.mib):  # unknown on some systems
            figure += f", {ours.mib:.0f} of {published.mib:.0f} MiB"
        figures.append(figure)
    return Finding("ok" if min(ratios) >= 0.8 else "slow", "; ".join(figures))


ATTENTION: dict[str, Layer] = {
    "Manhattan attention, decomposed": (lambda: ManhattanAttention(128, 4), (2, 32, 32, 128)),
    "Manhattan attention, full": (
        lambda: ManhattanAttention(128, 4, decomposed=False),
        (2, 32, 32, 128),
    ),
    "self-attention, heads of width 33": (lambda: SelfAttention(396, 12), (2, 197, 396)),
}


def check_kernels(
    build: Callable[[], nn.Module], shape: tuple[int, ...], device: torch.device
) -> Finding:
    """List the attention kernels that PyTorch chooses, in float32 and under autocast."""
    prefix = "aten::_scaled_dot_product_"
    torch.manual_seed(0)
    module, x = build().to(device), torch.randn(shape, device=device)
    figures, fused = [], True
    for dtype in (torch.float32, torch.bfloat16):
        context = torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)
        with context, torch.profiler.profile() as profile:
            module(x).sum().backward()
        names = {e.key.removeprefix(prefix) for e in profile.key_averages() if prefix in e.key}
        kernels = sorted(name for name in names if "backward" not in name)
        fused &= bool(kernels) and "attention_math" not in kernels
        figures.append(f"{str(dtype).removeprefix('torch.')} {', '.join(kernels) or 'none'}")
    return Finding("ok" if fused else "slow", "; ".join(figures))


SIZE = 64
_RESNET = dict(type="ResNetV1c", depth=18, num_stages=1, base_channels=16, stem_channels=16)
_RESNET |= dict(out_indices=(0,), strides=(1,), dilations=(1,), norm_cfg=dict(type="BN"))
_HEAD = dict(channels=16, num_classes=4, norm_cfg=dict(type="BN"), dropout_ratio=0.0)


def _with_head(**head: object) -> dict:
    head = dict(**_HEAD, in_channels=16, in_index=0, **head)
    return dict(backbone=_RESNET, decode_head=head)


def _with_backbone(channels: int, **backbone: object) -> dict:
    head = dict(type="FCNHead", num_convs=1, in_channels=channels, in_index=-1, **_HEAD)
    return dict(backbone=backbone, decode_head=head)


SEGMENTORS: dict[str, dict] = {
    "EAHead": _with_head(type="EAHead", ea_channels=32, memory_size=16),
    "JSegEAHead": _with_head(type="JSegEAHead", memory_size=16),
    "DANetEAHead": _with_head(type="DANetEAHead", memory_size=16),
    "MaSAHead": _with_head(type="MaSAHead", num_heads=4),
    "RMT": _with_backbone(512, type="RMT", arch="tiny", drop_path_rate=0.0),
    "LambdaResNet": _with_backbone(2048, type="LambdaResNet", depth=(1, 1, 1, 1)),
    "DeepViT": _with_backbone(384, type="DeepViT", arch="16b", img_size=SIZE // 2),
    "EAMLP": _with_backbone(256, type="EAMLP", arch="7", img_size=SIZE // 2),
}


def check_training(parts: dict, device: torch.device) -> Finding:
    """Run a training step twice with deterministic algorithms, and once under autocast.

    The two steps must be equal, and the loss must be the CPU's. On a GPU the figure lists
    operations without a deterministic form, and counts those that wait for the GPU.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    cuda = device.type == "cuda"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _deterministic():
            steps = [train_step(parts, device) for _ in range(2)]
        if cuda:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            amp, _ = train_step(parts, device, torch.bfloat16)
        finally:
            if cuda:
                torch.cuda.set_sync_debug_mode("default")
    messages = [str(w.message) for w in caught]
    random = {m.split()[0] for m in messages if "deterministic" in m}
    (loss, gradients), (_, again) = steps
    equal = all(torch.equal(g, again[name]) for name, g in gradients.items())
    figure = f"loss {loss:.4f}, under autocast {amp:.4f}"
    if random:
        figure += f", not deterministic: {', '.join(sorted(random))}"
    if cuda:
        figure += f", {sum('synchroniz' in m for m in messages)} synchronizations"
    if not equal:
        return Finding("FAIL", f"{figure}; two steps from the same state differ")
    expected, _ = train_step(parts, torch.device("cpu")) if cuda else (loss, None)
    if not abs(loss - expected) <= 1e-3 * expected or not abs(amp - loss) <= 0.1 * loss:
        return Finding("FAIL", f"{figure}, on the CPU {expected:.4f}")
    return Finding("ok", figure)


def train_step(
    parts: dict, device: torch.device, autocast: torch.dtype | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a training step from a fixed state, and the parameters after it."""
    from mmengine.optim import AmpOptimWrapper, OptimWrapper
    from mmengine.registry import DefaultScope
    from mmengine.structures import PixelData
    from mmseg.registry import MODELS
    from mmseg.structures import SegDataSample

    from mmseg_ext import register_all_modules

    register_all_modules(init_default_scope=False)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope("mmseg"):
        config = dict(type="EncoderDecoder", **parts, test_cfg=dict(mode="whole"))
        model = MODELS.build(config).to(device).train()
    images = torch.randn(2, 3, SIZE, SIZE).to(device)
    samples = [SegDataSample(metainfo=dict(img_shape=(SIZE, SIZE))) for _ in images]
    for sample in samples:
        labels = torch.randint(4, (1, SIZE, SIZE)).to(device)
        sample.gt_sem_seg = PixelData(data=labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = OptimWrapper(optimizer)
    if autocast is not None:
        wrapper = AmpOptimWrapper(dtype=autocast, optimizer=optimizer)
    loss = model.train_step(dict(inputs=images, data_samples=samples), wrapper)["loss"]
    return float(loss.detach()), {n: p.detach() for n, p in model.named_parameters()}


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def check_resume() -> Finding:
    """Compare four iterations with two, a checkpoint and two more after resuming, bit for bit."""
    from mmseg_ext import register_all_modules
    from mmseg_ext.checkpoint import read_state_dict

    register_all_modules()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        with _deterministic():
            _train_shapes(folder, "straight", 4)
            _train_shapes(folder, "resumed", 2)
            _train_shapes(folder, "resumed", 4, resume=True)
        straight, resumed = (
            read_state_dict(folder / run / "iter_4.pth") for run in ("straight", "resumed")
        )
    different = [k for k, v in straight.items() if not torch.equal(v, resumed[k])]
    if different:
        return Finding(
            "FAIL", f"{len(different)} of {len(straight)} tensors differ: {different[0]}"
        )
    return Finding("ok", f"{len(straight)} tensors are equal")


def _train_shapes(folder: Path, run: str, iterations: int, resume: bool = False) -> None:
    """Train the demo's config on a few scenes, in `folder / run` and without validation."""
    from mmengine.config import Config
    from mmengine.registry import RUNNERS

    config = Config.fromfile(str(configs_folder() / "ea_r18_shapes.py"))
    scenes = dict(data_root=str(folder / "shapes"), recipe=dict(train=8, val=2))
    loader = dict(batch_size=2, num_workers=0, persistent_workers=False, dataset=scenes)
    hooks = dict(checkpoint=dict(interval=2, max_keep_ckpts=2))
    config.merge_from_dict(
        dict(train_dataloader=loader, train_cfg=dict(max_iters=iterations), default_hooks=hooks)
    )
    config.val_dataloader = config.val_evaluator = config.val_cfg = None
    config.test_dataloader = config.test_evaluator = config.test_cfg = None
    config.work_dir, config.resume, config.log_level = str(folder / run), resume, "ERROR"
    config.experiment_name = f"doctor_{run}_{iterations}"
    torch.manual_seed(0)
    RUNNERS.build(config).train()
