"""What works on this machine: checks of an installation, each one line with a figure."""

from collections.abc import Callable
from typing import Literal, NamedTuple

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


def within(error: float, bound: float, figure: str = "") -> Finding:
    """Whether an error keeps its bound; `figure` says more about it."""
    return Finding("ok" if error <= bound else "FAIL", f"{error:.1e}{figure}, bound {bound:.1e}")
