"""The checks of an installation, in the order of the output.

Each check computes something whose result is known: from the published code, in float64, by
mmsegmentation, or by the same run without a stop. It returns a `Finding` with the error and the
bound. `checks` yields all of them for a device.
"""

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from mmseg_ext.doctor import fixtures
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ReAttention
from mmseg_ext.layers.manhattan_attention import attend, log_decays
from mmseg_ext.layers.precision import compute_dtype


class Finding(NamedTuple):
    """The result of a check."""

    status: Literal["ok", "slow", "FAIL"]
    figure: str


def pass_or_fail(good: bool, figure: str) -> Finding:
    """Return the finding 'ok' or 'FAIL'."""
    return Finding("ok" if good else "FAIL", figure)


Check = tuple[str, str, Callable[[], Finding]]  # group, name, and a function that runs the check


def checks(device: torch.device, quick: bool = False) -> Iterator[Check]:
    """Yield every check for `device`; with `quick`, only one backbone and fewer repetitions."""
    backbones = list(fixtures.BACKBONES)
    if quick:
        backbones = backbones[:1]
    precisions = list(PRECISIONS)
    if device.type != "cuda":
        precisions.remove("TF32")
    for name in [*fixtures.LAYERS, *backbones]:
        for precision in precisions:
            run = partial(check_parity, name, precision, device)
            yield "parity", f"{name}, {precision}", run
    for precision in precisions:
        yield "masked attention", precision, partial(check_attention, precision, device)
    rounds = 5 if quick else 9
    for name, layer in FAST_FORMS.items():
        yield "speed", name, partial(check_speed, layer, device, rounds)
    for name, parts in SEGMENTORS.items():
        yield "training", name, partial(check_training, parts, device)
    for half, name in ((False, "float32"), (True, "under autocast")):
        yield "class maps in strips", name, partial(check_strips, device, half)
    yield "files", "resume", check_resume


# Autocast type, TF32, and the largest accepted error, relative to the largest value.
PRECISIONS: dict[str, tuple[torch.dtype | None, bool, float]] = {
    "float32": (None, False, 1e-5),
    "TF32": (None, True, 2e-2),
    "bfloat16": (torch.bfloat16, False, 0.15),
    "float16": (torch.float16, False, 0.05),
}


def check_parity(name: str, precision: str, device: torch.device) -> Finding:
    """Compare a layer or backbone with the outputs of the published code."""
    bound = PRECISIONS[precision][2]
    errors = []
    with torch.no_grad(), in_precision(precision, device):
        for case in _cases(name):
            outputs = case.module.to(device)(case.x.to(device))
            errors.append(case.error(outputs))
    error = max(errors)
    return pass_or_fail(error <= bound, f"error {error:.1e}, bound {bound:.1e}")


@contextlib.contextmanager
def in_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Compute in one of `PRECISIONS`."""
    dtype, tf32, _ = PRECISIONS[precision]
    autocast = torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = tf32
    convolutions = torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32)  # off by default
    try:
        with convolutions, autocast:
            yield
    finally:
        matmul.allow_tf32 = before


@functools.lru_cache(1)  # the precisions of a fixture follow one another
def _cases(name: str) -> list[fixtures.Case]:
    return list(fixtures.cases(name))


LENGTHS = (64, 128, 192)  # RMT's at 512 pixels; cuDNN's gradients were wrong at 64 and 192
_SHIFT = -120.0  # of all logits
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of q, k, v and the mask


def check_attention(precision: str, device: torch.device) -> Finding:
    """Compare RMT's attention, and its gradients, with float64 where all logits are near -120."""
    # Logits in float32 have steps of 8e-6 there.
    bound = max(PRECISIONS[precision][2], 1e-4)
    good = True
    figures = []
    for length in LENGTHS:
        error = attention_error(attend, length, precision, device)
        good &= error <= bound  # nan is not
        figures.append(f"{length}: {error:.1e}")
    return pass_or_fail(good, f"errors at lengths {', '.join(figures)}, bound {bound:.1e}")


def attention_error(
    attention: Attention, length: int, precision: str, device: torch.device
) -> float:
    """Return the largest error of the output and the gradients, relative to the largest value.

    It is nan if one value is.
    """
    dtype = PRECISIONS[precision][0] or torch.float32
    generator = torch.Generator().manual_seed(length)
    inputs = [torch.randn(8, 4, length, 32, generator=generator).to(dtype) for _ in range(3)]
    positions = torch.arange(length)
    distances = (positions[:, None] - positions).abs()
    bias = (_SHIFT + log_decays(4, 2.0, 4.0).view(1, -1, 1, 1) * distances).to(dtype)

    q, k, v = (x.double().requires_grad_() for x in inputs)
    logits = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + bias.double()  # (8, 4, l, l)
    out = logits.softmax(-1) @ v
    exact = [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]

    q, k, v = (x.to(device, torch.float32).requires_grad_() for x in inputs)
    with in_precision(precision, device):
        half = compute_dtype(q)
        out = attention(q.to(half), k.to(half), v.to(half), bias.to(device, half))
    ours = [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]
    errors = []
    for found, expected in zip(ours, exact, strict=True):
        errors.append((found.double().cpu() - expected).abs().max() / expected.abs().max())
    return torch.stack(errors).max().item()


Layer = tuple[Callable[[], nn.Module], tuple[int, ...]]  # and the shape of its input
FAST_FORMS: dict[str, Layer] = {
    "external attention": (partial(ExternalAttention2d, 256), (2, 256, 64, 64)),
    "lambda layer": (partial(LambdaLayer, 64, receptive_field=23), (2, 64, 64, 64)),
    "re-attention": (partial(ReAttention, 128, 8), (2, 785, 128)),
}


def check_speed(layer: Layer, device: torch.device, rounds: int) -> Finding:
    """Time a layer and its published order of operations, which take turns."""
    build, shape = layer
    module = build().to(device)
    x = torch.randn(shape, device=device, requires_grad=True)
    figures = []
    slow = False
    for mode, call in {"training": "form(x).sum().backward()", "inference": "form(x)"}.items():
        module.train(mode == "training")
        timer = partial(Timer, call, num_threads=torch.get_num_threads())
        own_timer = timer(globals={"form": module, "x": x})
        published_timer = timer(globals={"form": module.published_order, "x": x})
        own_times, published_times = [], []
        with torch.set_grad_enabled(module.training):
            for _ in range(rounds):
                own_times.append(own_timer.timeit(1).mean)
                published_times.append(published_timer.timeit(1).mean)
        own, published = torch.tensor(own_times), torch.tensor(published_times)
        ratio = (published / own).median().item()
        figures.append(f"{mode} {1e3 * own.median():.1f} ms, x{ratio:.2f}")
        slow |= ratio < 0.8
    return Finding("slow" if slow else "ok", "; ".join(figures))


SIZE = 64
# A scaled sum, since mmsegmentation 1.2.2 has no mean with class weights and ignored pixels.
_LOSS = dict(type="CrossEntropyLoss", reduction="sum", loss_weight=1 / (2 * SIZE**2))
_LOSS |= dict(class_weight=[1.0, 2.0, 0.5, 1.5])
_HEAD = dict(channels=16, norm_cfg=dict(type="BN"), dropout_ratio=0.0, loss_decode=_LOSS)
_HEAD |= dict(num_classes=4)
_RESNET = dict(type="ResNetV1c", depth=18, num_stages=1, base_channels=16, stem_channels=16)
_RESNET |= dict(out_indices=(0,), strides=(1,), dilations=(1,), norm_cfg=dict(type="BN"))
_FCN = dict(type="FCNHead")
_VIT = dict(embed_dims=396, depth=2, num_heads=12, re_attention_blocks=1)
# Backbone, its last width, and head: each of ours once, next to parts of mmsegmentation.
Parts = tuple[dict, int, dict]
SEGMENTORS: dict[str, Parts] = {
    "EAHead": (_RESNET, 16, dict(type="EAHead", ea_channels=32)),
    "JSegEAHead": (_RESNET, 16, dict(type="JSegEAHead")),
    "DANetEAHead": (_RESNET, 16, dict(type="DANetEAHead")),
    "MaSAHead": (_RESNET, 16, dict(type="MaSAHead", num_heads=4)),
    "RMT": (dict(type="RMT", arch="tiny", out_indices=3, drop_path_rate=0.0), 512, _FCN),
    "LambdaResNet": (dict(type="LambdaResNet", depth=(1, 1, 1, 1)), 2048, _FCN),
    "DeepViT": (dict(type="DeepViT", arch=_VIT, img_size=32), 396, _FCN),
    "EAMLP": (dict(type="EAMLP", arch="7", img_size=32), 256, _FCN),
}


def check_training(parts: Parts, device: torch.device) -> Finding:
    """Run a training step twice with deterministic algorithms, and once under autocast.

    The gradients of the two steps must be equal, and the loss must be the CPU's.
    """
    loss, gradients = train_step(parts, device)
    _, repeated_gradients = train_step(parts, device)
    half_loss, _ = train_step(parts, device, half=True)
    expected = loss
    if device.type != "cpu":
        expected, _ = train_step(parts, torch.device("cpu"))
    figure = f"loss {loss:.4f}, on the CPU {expected:.4f}, under autocast {half_loss:.4f}"
    is_close = abs(loss - expected) <= 1e-3 * expected and abs(half_loss - loss) <= 0.1 * loss
    is_repeated = True
    for name, gradient in gradients.items():
        is_repeated &= torch.equal(gradient, repeated_gradients[name])
    if not is_repeated:
        figure += ", the two steps differ"
    return pass_or_fail(is_close and is_repeated, figure)


def train_step(
    parts: Parts, device: torch.device, half: bool = False, kind: str = "EncoderDecoder"
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of a new segmentor."""
    model, images, samples = segmentor(parts, device, kind)
    with _deterministic():
        loss = loss_of(model, images, samples, half)
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return float(loss.detach()), gradients


def segmentor(parts: Parts, device: torch.device, kind: str) -> tuple[Any, Tensor, list]:
    """Return a new segmentor with images and samples, of which every fifth pixel is ignored."""
    from mmengine.config import ConfigDict
    from mmengine.registry import DefaultScope
    from mmengine.structures import PixelData
    from mmseg.registry import MODELS
    from mmseg.structures import SegDataSample

    from mmseg_ext import register_all_modules

    register_all_modules(init_default_scope=False)
    torch.manual_seed(0)
    backbone, width, head = parts
    head = dict(**_HEAD, in_channels=width, in_index=-1, **head)
    with DefaultScope.overwrite_default_scope("mmseg"):
        settings = dict(backbone=backbone, decode_head=head, test_cfg=dict(mode="whole"))
        model = MODELS.build(ConfigDict(type=kind, **settings)).to(device).train()
    images = torch.randn(2, 3, SIZE, SIZE).to(device)
    sizes = dict(img_shape=(SIZE, SIZE), ori_shape=(SIZE, SIZE), pad_shape=(SIZE, SIZE))
    samples = [SegDataSample(metainfo=sizes) for _ in images]
    for sample in samples:
        labels = torch.randint(5, (1, SIZE, SIZE))
        sample.gt_sem_seg = PixelData(data=labels.masked_fill(labels == 4, 255).to(device))
    return model, images, samples


def check_strips(device: torch.device, half: bool) -> Finding:
    """Compare class maps in strips with mmsegmentation's: loss, gradients, labels, time, memory."""
    parts = SEGMENTORS["EAHead"]
    full, strips = "EncoderDecoder", "StripEncoderDecoder"
    expected_loss, expected_gradients = train_step(parts, device, half, full)
    loss, gradients = train_step(parts, device, half, strips)
    error = _largest_error(gradients, expected_gradients)
    expected_labels, (expected_seconds, expected_bytes) = _labels_and_cost(
        parts, device, half, full
    )
    labels, (seconds, peak_bytes) = _labels_and_cost(parts, device, half, strips)
    equal = (labels == expected_labels).double().mean().item()
    loss_bound, gradient_bound, least_equal = 1e-5, 1e-4, 0.999
    if half:
        loss_bound, gradient_bound, least_equal = 0.02, 0.1, 0.97
    is_close = abs(loss - expected_loss) <= loss_bound * expected_loss and error <= gradient_bound
    figure = f"loss {loss:.5f}, mmsegmentation's {expected_loss:.5f}, gradients {error:.1e}, "
    figure += f"labels {equal:.2%} equal, time x{seconds / expected_seconds:.2f}"
    if device.type == "cuda":
        figure += f", memory x{peak_bytes / expected_bytes:.2f}"
    return pass_or_fail(is_close and equal >= least_equal, figure)


def _largest_error(gradients: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest difference, relative to the largest value of all; nan if one is."""
    differences = [(gradients[name] - value).abs().max() for name, value in expected.items()]
    sizes = [value.abs().max() for value in expected.values()]
    return (torch.stack(differences).max() / torch.stack(sizes).max()).item()


def _labels_and_cost(
    parts: Parts, device: torch.device, half: bool, kind: str
) -> tuple[Tensor, tuple[float, int]]:
    """Return the labels of a new segmentor, and the cost of its training step."""
    model, images, samples = segmentor(parts, device, kind)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        predictions = model.eval()(images, samples, mode="predict")
    labels = torch.stack([prediction.pred_sem_seg.data for prediction in predictions])
    return labels, _step_cost(model.train(), images, samples, half)


def _step_cost(model: Any, images: Tensor, samples: list, half: bool) -> tuple[float, int]:
    """Return the seconds and on a GPU the peak bytes of a training step."""
    names = dict(loss_of=loss_of, model=model, images=images, samples=samples, half=half)
    timer = Timer("loss_of(model, images, samples, half).backward()", globals=names)
    if not images.is_cuda:
        return timer.timeit(5).mean, 0
    torch.cuda.reset_peak_memory_stats(images.device)
    return timer.timeit(5).mean, torch.cuda.max_memory_allocated(images.device)


def loss_of(model: Any, images: Tensor, samples: list, half: bool) -> Tensor:
    """Return the sum of a segmentor's losses, with `half` under autocast."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        losses = model(images, samples, mode="loss")
    return model.parse_losses(losses)[0]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
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
        straight = read_state_dict(folder / "straight/iter_4.pth")
        resumed = read_state_dict(folder / "resumed/iter_4.pth")
    different = 0
    for name, value in straight.items():
        if not torch.equal(value, resumed[name]):
            different += 1
    return pass_or_fail(different == 0, f"{different} of {len(straight)} tensors differ")


def _train_shapes(folder: Path, run: str, iterations: int, resume: bool = False) -> None:
    """Train the demo's config on a few scenes, in `folder / run` and without validation."""
    from mmseg_ext.engine.build import build_train_runner

    scenes = dict(data_root=str(folder / "shapes"), recipe=dict(train=8, val=2))
    loader = dict(batch_size=2, num_workers=0, persistent_workers=False, dataset=scenes)
    changes: dict[str, Any] = {}
    for key in ("dataloader", "cfg", "evaluator"):
        changes[f"val_{key}"] = None
        changes[f"test_{key}"] = None
    changes |= dict(train_dataloader=loader, train_cfg=dict(max_iters=iterations))
    changes |= dict(experiment_name=f"doctor_{run}_{iterations}", log_level="ERROR")
    changes |= dict(default_hooks=dict(checkpoint=dict(interval=2)))
    torch.manual_seed(0)
    build_train_runner("ea_r18_shapes", changes, str(folder / run), resume=resume).train()
