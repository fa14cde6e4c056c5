"""What a check is and what it finds."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch

from mmseg_ext.cost.contest import contest

Status = Literal["ok", "slow", "FAIL", "skipped"]


class Finding(NamedTuple):
    """What a check found, in one line."""

    status: Status
    figure: str


class Check(NamedTuple):
    """A check by name, within a group of them."""

    group: str
    name: str
    run: Callable[[], Finding]


class Unavailable(Exception):
    """This machine, or this installation, cannot do what the check is about."""


def compared(
    name: str, steps: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> tuple[str, float]:
    """'training 12.3 ms, x1.40, 20 of 41 MiB' of two steps, and how much faster the first is."""
    first, second = contest(steps, rounds, device).values()
    memory = f"{first.mib:.0f} of {second.mib:.0f} MiB"
    return f"{name} {first.ms:.1f} ms, x{second.over_first:.2f}, {memory}", second.over_first
