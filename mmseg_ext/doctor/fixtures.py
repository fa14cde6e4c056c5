"""Parity fixtures: what published implementations computed, on weights and inputs made by a rule.

A fixture stores only what a published implementation computed in float64. Weights and inputs
follow one rule on NumPy's legacy generator, seeded by the CRC of the entry's name, so that a
fixture is small and any program can rebuild it.
"""

import json
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "parity"


def _standard_normal(name: str, shape: list[int], seed: int) -> np.ndarray:
    state = np.random.RandomState((zlib.crc32(name.encode()) + seed) & 0xFFFFFFFF)
    return state.standard_normal(shape)


def _entry(key: str, shape: list[int], seed: int, gain: float) -> Tensor:
    leaf = key.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    a = _standard_normal(key, shape, seed)
    if leaf == "running_var":
        value = 1 + 0.25 * np.abs(a)
    elif leaf in ("running_mean", "bias"):
        value = 0.1 * a
    elif len(shape) <= 1 or leaf.startswith("gamma"):
        value = 1 + 0.1 * a
    else:
        value = gain * a / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(value, dtype=np.float32).reshape(shape))


class Fixture:
    """One `.npz`: `meta`, `inputs`, the published `state_dict`, and the stored `outputs`."""

    def __init__(self, name: str, folder: Path = FOLDER):
        with np.load(folder / f"{name}.npz") as archive:
            self.meta = json.loads(str(archive["meta"]))
            self.outputs = {
                key.removeprefix("out_"): torch.from_numpy(archive[key])
                for key in archive.files
                if key.startswith("out_")
            }
        seed = self.meta["seed"]
        self.inputs = {
            name: torch.from_numpy(_standard_normal(name, shape, seed).astype(np.float32))
            for name, shape in self.meta["inputs"].items()
        }
        gain = self.meta["gain"]
        self.state_dict = {k: _entry(k, s, seed, gain) for k, s in self.meta["keys"].items()}
