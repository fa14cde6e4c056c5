"""The checks of an installation, in the order of their output.

Every check is a function that returns a `Finding`. `perform` turns an exception into one too, so
that a machine that cannot do something gets a line about it and the rest still runs.
"""

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmseg_ext.cost.timing import compare_times, inference_step, training_step
from mmseg_ext.doctor import Check, Finding, Unavailable, published_cases, small_runs, within
from mmseg_ext.doctor.published_cases import Case
from mmseg_ext.doctor.small_runs import check_gradients
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
    except Exception as error:
        return Finding("FAIL", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def checks(device: torch.device, quick: bool = False) -> Iterator[Check]:
    """Every check for `device`; with `quick` those that take seconds, on one model of a kind."""
    problem = stack_problem()
    for name, value in describe():
        missing = value.startswith("not usable") or value == problem
        finding = Finding("skipped" if missing else "ok", value)
        yield Check("environment", name, lambda finding=finding: finding)
    yield Check("environment", "memory", partial(_memory, device))
    yield from _parity_checks(device, quick, with_models=problem is None)
    for name, layer in LAYERS.items():
        yield Check("gradients", name, partial(_gradients, layer, device))
    if problem is None:
        yield from _training_checks(device, quick)
    yield Check("processes", "DDP, gradients", partial(check_gradients, device))
    if problem is None:
        yield Check("files", "resume", small_runs.check_resume)
    for name, layer in LAYERS.items():
        if layer.large is not None:
            yield Check("speed", name, partial(_speed, layer, device, quick))
    if problem is not None:
        yield Check("stack", "backbones, training, resume", lambda: Finding("skipped", problem))


def _memory(device: torch.device) -> Finding:
    if device.type != "cuda" and not hasattr(os, "sysconf"):
        return Finding("skipped", "unknown on this system")
    if device.type != "cuda":
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Finding("ok", f"{total / 2**30:.1f} GiB")
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


def _parity_checks(device: torch.device, quick: bool, with_models: bool) -> Iterator[Check]:
    models = list(published_cases.MODELS.items()) if with_models else []
    for name, build in [*published_cases.LAYERS.items(), *models[: 1 if quick else None]]:
        for precision in PRECISIONS:
            if device.type == "cuda" or not precision.tf32:
                run = partial(_parity, build, precision, device)
                yield Check("parity", f"{name}, {precision.name}", run)


def _parity(build: Callable[[], Case], precision: Precision, device: torch.device) -> Finding:
    case = build()
    module, x = case.module.to(device), case.x.to(device)
    bound, figure = precision.bound, ""
    with torch.no_grad(), _tf32(precision.tf32), _autocast(device, precision.autocast):
        error = _error(module(x), case.outputs)
        if hasattr(module, "published_order"):
            plain = _error(module.published_order(x), case.outputs)
            bound = max(bound, 1.5 * plain) if precision.autocast else bound
            figure = f" (published order {plain:.1e})"
    return within(error, bound, figure)


def _error(ours: Tensor | Sequence[Tensor], published: list[Tensor]) -> float:
    """Largest difference over the largest published value; infinite for what is not finite."""
    pairs = zip([ours] if isinstance(ours, Tensor) else ours, published, strict=True)
    errors = [(a.double().cpu() - b).abs().max() / b.abs().max() for a, b in pairs]
    return max(float(e) if torch.isfinite(e) else float("inf") for e in errors)


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
    """A layer, its input at a small size, and at a large one if it has a fast form."""

    build: Callable[[], nn.Module]
    small: tuple[int, ...]
    large: tuple[int, ...] | None = None


LAYERS = {
    "external attention": Layer(
        lambda: ExternalAttention2d(256), (2, 256, 12, 10), (2, 256, 64, 64)
    ),
    "external attention, tokens": Layer(lambda: ExternalAttention(128), (2, 50, 128)),
    "multi-head external attention": Layer(
        lambda: MultiHeadExternalAttention(128, 4), (2, 50, 128)
    ),
    "Manhattan attention, decomposed": Layer(lambda: ManhattanAttention(128, 4), (2, 9, 7, 128)),
    "Manhattan attention, full": Layer(
        lambda: ManhattanAttention(128, 4, decomposed=False), (2, 9, 7, 128)
    ),
    "lambda layer": Layer(
        lambda: LambdaLayer(64, receptive_field=23), (2, 64, 12, 10), (2, 64, 64, 64)
    ),
    "re-attention": Layer(lambda: ReAttention(128, 8), (2, 50, 128), (2, 785, 128)),
}


def _published_order(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return getattr(module, "published_order", module)


def _gradients(layer: Layer, device: torch.device) -> Finding:
    """Gradients in float64 on the device against the CPU's in the published order."""
    torch.manual_seed(0)
    reference = layer.build().double()
    ours = copy.deepcopy(reference).to(device)
    x = torch.randn(layer.small, dtype=torch.float64)
    weights = torch.randn(layer.small, dtype=torch.float64)
    expected = _gradients_of(reference, _published_order(reference), x, weights)
    gradients = _gradients_of(ours, ours, x.to(device), weights.to(device))
    largest = max(float(g.abs().max()) for g in expected.values())
    error = max(float((gradients[k].cpu() - g).abs().max()) / largest for k, g in expected.items())
    return within(error, 1e-9)


def _gradients_of(
    module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """Gradients of a weighted sum of the output by the input and by every parameter."""
    x = x.clone().requires_grad_()
    (forward(x) * weights).sum().backward()
    return {"the input": x.grad} | {name: p.grad for name, p in module.named_parameters()}


def _speed(layer: Layer, device: torch.device, quick: bool) -> Finding:
    """Training and inference of the layer against the published order: ratios, and peak memory."""
    torch.manual_seed(0)
    module = layer.build().to(device)
    x = torch.randn(1 if quick else layer.large[0], *layer.large[1:], device=device)
    forms, parameters = (module, module.published_order), list(module.parameters())
    modes = {
        "training": [training_step(form, x, parameters) for form in forms],
        "inference": [inference_step(form, x) for form in forms],
    }
    parts, ratios = [], []
    for mode, steps in modes.items():
        module.train(mode == "training")
        steps = dict(zip(("ours", "published"), steps, strict=True))
        ours, published = compare_times(steps, 3 if quick else 10, device).values()
        ratios.append(published.ratio)
        memory = f"{ours.mib:.0f} of {published.mib:.0f} MiB"
        if math.isnan(ours.mib):
            memory = "memory unknown on this system"
        parts.append(f"{mode} {ours.ms:.1f} ms, x{ratios[-1]:.2f}, {memory}")
    return Finding("ok" if min(ratios) >= 0.8 else "slow", "; ".join(parts))


# --- whole models -------------------------------------------------------------------------------


def _training_checks(device: torch.device, quick: bool) -> Iterator[Check]:
    for i, name in enumerate(small_runs.MODELS):
        modes = ("amp", "deterministic", "compile")
        for mode in modes[: 2 - (i > 0)] if quick else modes:  # a compiler takes minutes
            yield Check("training", f"{name}, {mode}", partial(_training, name, mode, device))


def _training(name: str, mode: str, device: torch.device) -> Finding:
    start = time.perf_counter()
    losses = small_runs.train_steps(name, mode, device)
    figure = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {time.perf_counter() - start:.1f} s"
    if mode == "deterministic" and small_runs.train_steps(name, mode, device) != losses:
        return Finding("FAIL", f"{figure}; a second run differs")
    finite = all(torch.isfinite(torch.tensor(losses)))
    return Finding("ok" if finite and losses[-1] < losses[0] else "FAIL", figure)
