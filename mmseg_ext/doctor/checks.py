"""The checks of an installation, in the order of the output.

Each check computes something whose result is known, from the published code or from the same run
without a stop, and returns a `Finding`. `checks` yields all of them for a device.
"""

import contextlib
import functools
import io
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from mmseg_ext.doctor import fixtures


class Finding(NamedTuple):
    """The result of a check."""

    status: Literal["ok", "FAIL"]
    figure: str


Check = tuple[str, str, Callable[[], Finding]]  # group, name, and a function that runs the check


def checks(device: torch.device, quick: bool = False) -> Iterator[Check]:
    """Yield every check for `device`; with `quick`, only the first backbone."""
    backbones = list(fixtures.BACKBONES)
    if quick:
        backbones = backbones[:1]
    precisions = list(PRECISIONS)
    if device.type != "cuda":
        precisions.remove("TF32")
    for name in [*fixtures.LAYERS, *backbones]:
        for precision in precisions:
            yield "parity", f"{name}, {precision}", partial(check_parity, name, precision, device)
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
    status = "ok" if error <= bound else "FAIL"
    return Finding(status, f"error {error:.1e}, bound {bound:.1e}")


@contextlib.contextmanager
def in_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Compute in a precision of `PRECISIONS`."""
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


def check_resume() -> Finding:
    """Compare four iterations with two, a checkpoint and two more after resuming, bit for bit."""
    from mmseg_ext import register_all_modules
    from mmseg_ext.checkpoint import read_state_dict

    register_all_modules()
    mode = torch.get_deterministic_debug_mode()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        _train_shapes(folder, "straight", 4)
        _train_shapes(folder, "resumed", 2)
        _train_shapes(folder, "resumed", 4, resume=True)
        torch.set_deterministic_debug_mode(mode)  # the runs leave deterministic algorithms on
        straight = read_state_dict(folder / "straight/iter_4.pth")
        resumed = read_state_dict(folder / "resumed/iter_4.pth")
    different = 0
    for name, value in straight.items():
        if not torch.equal(value, resumed[name]):
            different += 1
    status = "FAIL" if different else "ok"
    return Finding(status, f"{different} of {len(straight)} tensors differ")


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
    # Else mmengine warns that the first one is turned off.
    changes |= dict(env_cfg=dict(cudnn_benchmark=False), randomness=dict(deterministic=True))
    torch.manual_seed(0)
    build_train_runner("ea_r18_shapes", changes, str(folder / run), resume=resume).train()
