"""A few of many items, where looking at all would take too long."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` of the items, in equal steps from the first one to the last one."""
    numbers = np.linspace(0, len(items) - 1, min(most, len(items))).astype(int)
    return [items[i] for i in numbers]
