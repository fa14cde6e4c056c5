"""What a check is and what it finds."""

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
