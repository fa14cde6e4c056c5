"""Holding a module to the stored outputs of a published implementation, and to another module."""

import torch
from torch import Tensor, nn

from mmseg_ext.doctor.published_cases import Fixture

__all__ = ["Fixture", "assert_parity", "gradient_difference"]


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
