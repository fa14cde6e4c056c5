"""The random streams of a process: Python's, NumPy's and torch's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def random_state() -> dict:
    """The states of the streams, that of the current CUDA device included, as plain containers."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """The inverse of `random_state`; tensors may be on any device."""
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the context, Python's, NumPy's and torch's CPU streams start at `seed` (64 bits).

    Outside, they go on as if nothing had been drawn.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
