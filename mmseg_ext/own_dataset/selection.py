"""A few of many items, where looking at all would take too long."""

from collections.abc import Sequence
from typing import Any


def evenly(items: Sequence[Any], most: int) -> Sequence[Any]:
    """Return at most `most` of the items, in equal steps from the first one on."""
    step = -(-len(items) // most)  # rounded up
    return items[:: max(1, step)]
