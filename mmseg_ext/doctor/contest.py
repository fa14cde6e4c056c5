"""Several forms of one computation on the same input: time and peak memory, taking turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mmseg_ext.cost.measure import median_ratio, paired_times, peak_memory

MEBI = 2**20
Forms = Mapping[str, Callable[[], Tensor]]


class Result(NamedTuple):
    """Of one form: seconds of each round, and peak MiB above the start."""

    seconds: list[float]
    memory: float


def contest(
    forms: Forms, leaves: Sequence[Tensor] | None, device: torch.device, rounds: int
) -> dict[str, Result]:
    """Forward and backward to `leaves` of every form, or inference where they are None."""

    def step(form: Callable[[], Tensor]) -> None:
        if leaves is None:
            with torch.no_grad():
                form()
        else:
            torch.autograd.grad(form().square().mean(), leaves, allow_unused=True)

    runs = {name: partial(step, form) for name, form in forms.items()}
    seconds = paired_times(runs, rounds=rounds, warmup=1)
    return {
        name: Result(seconds[name], peak_memory(run, device) / MEBI) for name, run in runs.items()
    }


def speedup(results: Mapping[str, Result], ours: str, theirs: str) -> float:
    """Median time of one form over the other's, from 1 on where `ours` is faster."""
    return median_ratio(results[theirs].seconds, results[ours].seconds)


def sentence(name: str, results: Mapping[str, Result], ours: str, theirs: str) -> str:
    """'training 12.3 ms, x1.40, 20 of 41 MiB'."""
    first, second = results[ours], results[theirs]
    return (
        f"{name} {1e3 * statistics.median(first.seconds):.1f} ms, "
        f"x{speedup(results, ours, theirs):.2f}, {first.memory:.0f} of {second.memory:.0f} MiB"
    )
