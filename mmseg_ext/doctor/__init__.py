"""Checks of an installation. Each check returns one line: a status and a figure."""

from collections.abc import Callable
from typing import Literal, NamedTuple

Status = Literal["ok", "slow", "FAIL", "skipped"]


class Finding(NamedTuple):
    """The result of a check."""

    status: Status
    figure: str


class Check(NamedTuple):
    """A check, by name within its group."""

    group: str
    name: str
    run: Callable[[], Finding]
