"""The checks of an installation, in the order in which a user would want them answered.

Every check is a function that returns a `Finding`; what it raises becomes one too (`perform`), so
that a machine that cannot do something gets a line about it and the rest still runs.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmseg_ext.cost.contest import MEBI, inference_step, training_step
from mmseg_ext.doctor import processes, published_cases, small_runs
from mmseg_ext.doctor.compiling import check_compiled, require_compiler
from mmseg_ext.doctor.findings import Check, Finding, Unavailable, compared
from mmseg_ext.doctor.published_cases import Case
from mmseg_ext.environment import describe, stack_problem
from mmseg_ext.layers import (
    ExternalAttention,
    ExternalAttention2d,
    LambdaLayer,
    ManhattanAttention,
    MultiHeadExternalAttention,
    ReAttention,
)


def perform(check: Check) -> Finding:
    """The check's finding: an exception is a failure, what the machine lacks is skipped."""
    try:
        return check.run()
    except Unavailable as reason:
        return Finding("skipped", str(reason))
    except torch.OutOfMemoryError as error:
        return Finding("FAIL", f"out of memory: {_one_line(error)}")
    except Exception as error:
        return Finding("FAIL", f"{type(error).__name__}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


# How a row of the environment begins whose package is not there or does not work.
_MISSING = ("not usable", "mmseg_ext: ")


def checks(
    device: torch.device, quick: bool = False, configs: Sequence[str] = ()
) -> Iterator[Check]:
    """Every check for `device`; with `quick` those that take seconds, on one model of a kind."""
    for name, value in describe():
        status = "skipped" if value.startswith(_MISSING) else "ok"
        yield Check("environment", name, partial(Finding, status, value))
    yield Check("environment", "memory", partial(_memory, device))
    yield from _parity_checks(device, quick)
    for name, build in LAYERS.items():
        yield Check("gradients", name, partial(_gradients, build, device))
    problem = stack_problem()
    if problem is None:
        yield from _training_checks(device, quick)
    yield Check("processes", "DDP, gradients", partial(processes.check_gradients, device))
    yield Check("files", "safe loading", small_runs.check_safe_loading)
    if problem is None:
        yield Check("files", "resume", partial(small_runs.check_resume, device))
    for name, build in LAYERS.items():
        yield Check("speed", name, partial(_speed, build, device, quick))
    for name in COMPILED:
        yield Check("compiled", name, partial(_compiled, LAYERS[name], device, quick))
    if problem is None:
        for path in configs:
            yield Check("configs", Path(path).stem, partial(small_runs.check_config, path, device))
    else:
        yield Check("stack", "heads, backbones, training", partial(Finding, "skipped", problem))


def _memory(device: torch.device) -> Finding:
    if device.type != "cuda":
        pages = Path("/proc/meminfo")
        if not pages.exists():
            raise Unavailable("the machine's memory is read from /proc, which only Linux has")
        total, _, free = (int(x.split()[1]) for x in pages.read_text().splitlines()[:3])
        return Finding("ok", f"{free / MEBI:.1f} of {total / MEBI:.1f} GiB free")
    free, total = torch.cuda.mem_get_info(device)
    return Finding("ok", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free on {device}")


# --- parity with the published implementations --------------------------------------------------


class Precision(NamedTuple):
    """How a module runs: its name, the autocast type, TF32, and the largest error that is right.

    The error is the largest difference over the largest value. Under autocast it is compared with
    the published order's as well, whose own rounding sets the scale.
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


def _parity_checks(device: torch.device, quick: bool) -> Iterator[Check]:
    cases = dict(published_cases.LAYERS)
    if stack_problem() is None:
        models = list(published_cases.MODELS.items())
        cases |= models[:1] if quick else models
    for name, build in cases.items():
        for precision in PRECISIONS:
            if precision.tf32 and device.type != "cuda":
                continue
            run = partial(_parity, build, precision, device)
            yield Check("parity", f"{name}, {precision.name}", run)


def _parity(build: Callable[[], Case], precision: Precision, device: torch.device) -> Finding:
    case = build()
    module, x = case.module.to(device), case.x.to(device)
    with torch.no_grad(), _tf32(precision.tf32), _autocast(device, precision.autocast):
        error = _error(case.compared(module(x)))
        bound, figure = precision.bound, f"{error:.1e}"
        if hasattr(module, "published_order"):
            plain = _error(case.compared(module.published_order(x)))
            bound = max(bound, 1.5 * plain) if precision.autocast else bound
            figure += f" (plain {plain:.1e})"
    figure += f", bound {bound:.1e}"
    return Finding("ok" if error <= bound else "FAIL", figure)


def _error(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Largest difference over the largest stored value; infinite where something is not finite."""
    worst = 0.0
    for ours, stored in pairs:
        stored = stored.double()
        difference = (ours.double().cpu() - stored).abs().max() / stored.abs().max()
        worst = max(worst, float(difference) if torch.isfinite(difference) else float("inf"))
    return worst


def _plainly(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module's equations in the published order: its forward, if it has no faster form."""
    return getattr(module, "published_order", module)


@contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _autocast(device: torch.device, dtype: torch.dtype | None):
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


# --- layers: gradients and speed ----------------------------------------------------------------


class Layer(NamedTuple):
    """A layer and its input at a small and at a large size."""

    module: nn.Module
    small: tuple[int, ...]
    large: tuple[int, ...]


LAYERS: dict[str, Callable[[], Layer]] = {
    "external attention": lambda: Layer(
        ExternalAttention2d(256), (2, 256, 12, 10), (2, 256, 64, 64)
    ),
    "external attention, tokens": lambda: Layer(
        ExternalAttention(128), (2, 50, 128), (2, 4096, 128)
    ),
    "multi-head external attention": lambda: Layer(
        MultiHeadExternalAttention(128, 4), (2, 50, 128), (2, 2048, 128)
    ),
    "Manhattan attention, decomposed": lambda: Layer(
        ManhattanAttention(128, 4), (2, 9, 7, 128), (2, 64, 64, 128)
    ),
    "Manhattan attention, full": lambda: Layer(
        ManhattanAttention(128, 4, decomposed=False), (2, 9, 7, 128), (2, 32, 32, 128)
    ),
    "lambda layer": lambda: Layer(
        LambdaLayer(64, receptive_field=23), (2, 64, 12, 10), (2, 64, 64, 64)
    ),
    "re-attention": lambda: Layer(ReAttention(128, 8), (2, 50, 128), (2, 785, 128)),
}
COMPILED = ("external attention", "lambda layer")


def _gradients(build: Callable[[], Layer], device: torch.device) -> Finding:
    """Gradients in float64 on the device, by the layer, against the CPU's by the plain form."""
    torch.manual_seed(0)
    layer = build()
    reference = layer.module.double()
    ours = copy.deepcopy(reference).to(device)
    x = torch.randn(layer.small, dtype=torch.float64)
    weights = torch.randn(layer.small, dtype=torch.float64)
    expected = _gradients_of(reference, _plainly(reference), x, weights)
    gradients = _gradients_of(ours, ours, x.to(device), weights.to(device))
    largest = max(float(g.abs().max()) for g in expected.values())
    error = max(float((gradients[k].cpu() - g).abs().max()) / largest for k, g in expected.items())
    return Finding("ok" if error <= 1e-9 else "FAIL", f"{error:.1e}, bound 1.0e-09")


def _gradients_of(
    module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """Gradients of a weighted sum of the output by the input and by every parameter."""
    x = x.clone().requires_grad_()
    (forward(x) * weights).sum().backward()
    return {"the input": x.grad} | {name: p.grad for name, p in module.named_parameters()}


def _speed(build: Callable[[], Layer], device: torch.device, quick: bool) -> Finding:
    """Training and inference of the layer against its plain form: ratios, and peak memory."""
    module, x = _large(build, device, quick)
    plain = _plainly(module)
    rounds = 3 if quick else 10
    training = {
        "ours": training_step(module, x),
        "plain": training_step(plain, x, module.parameters()),
    }
    trained, training_ratio = compared("training", training, device, rounds)
    inference = {"ours": inference_step(module, x), "plain": inference_step(plain, x)}
    inferred, inference_ratio = compared("inference", inference, device, rounds)
    parts, ratios = [trained, inferred], [training_ratio, inference_ratio]
    return Finding("ok" if min(ratios) >= 0.8 else "slow", "; ".join(parts))


def _large(
    build: Callable[[], Layer], device: torch.device, quick: bool
) -> tuple[nn.Module, Tensor]:
    """The layer and a large input, with `quick` of one image, on the device."""
    torch.manual_seed(0)
    layer = build()
    batch = 1 if quick else layer.large[0]
    x = torch.randn(batch, *layer.large[1:], device=device, requires_grad=True)
    return layer.module.to(device), x


def _compiled(build: Callable[[], Layer], device: torch.device, quick: bool) -> Finding:
    if quick:
        raise Unavailable("a compiler takes longer than --quick has; run without it")
    module, x = _large(build, device, quick)
    return check_compiled(module, x, device, rounds=10)


# --- whole models -------------------------------------------------------------------------------


def _training_checks(device: torch.device, quick: bool) -> Iterator[Check]:
    models = small_runs.MODELS
    # On a CPU a C++ compiler takes most of the minute that a quick doctor has.
    compiling = "trace" if quick and device.type == "cpu" else "compile"
    for i, name in enumerate(models):
        for mode in ("amp", "deterministic", compiling):
            if quick and i and mode != "amp":
                continue
            yield Check("training", f"{name}, {mode}", partial(_training, name, mode, device))


def _training(name: str, mode: str, device: torch.device) -> Finding:
    if mode == "compile":
        require_compiler(device)
    start = time.perf_counter()
    losses = small_runs.train_steps(name, mode, device)
    seconds = time.perf_counter() - start
    figure = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {seconds:.1f} s"
    if mode == "deterministic" and small_runs.train_steps(name, mode, device) != losses:
        return Finding("FAIL", f"{figure}; a second run differs")
    finite = all(torch.isfinite(torch.tensor(losses)))
    return Finding("ok" if finite and losses[-1] < losses[0] else "FAIL", figure)
