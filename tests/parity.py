"""Rebuild the weights and inputs of a parity fixture, and hold a module to its stored outputs.

A fixture stores only what a published implementation computed in float64. Weights and inputs
follow one rule on NumPy's legacy generator, seeded by the CRC of the entry's name.
"""

import json
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "data" / "parity"


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

    def __init__(self, name: str):
        with np.load(FOLDER / f"{name}.npz") as archive:
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


def assert_parity(ours: Tensor, theirs: Tensor) -> None:
    """max|ours - theirs| <= 1e-5 max|theirs| for a float32 result, 1e-6 for a float64 one."""
    assert ours.shape == theirs.shape
    bound = {torch.float32: 1e-5, torch.float64: 1e-6}[ours.dtype]
    error = (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()
    assert error <= bound, f"relative error {error:.3g} > {bound}"


def gradient_difference(module: nn.Module, reference: nn.Module) -> float:
    """Largest difference between two modules' gradients, over the largest gradient of any."""
    theirs = dict(reference.named_parameters())
    largest = max(p.grad.abs().max() for p in theirs.values())
    return max(
        float((p.grad - theirs[name].grad).abs().max() / largest)
        for name, p in module.named_parameters()
    )
