"""Compare modules with the stored outputs of published code, and with each other."""

import torch
from torch import Tensor, nn

from mmseg_ext.doctor.fixtures import Fixture, cases

__all__ = ["Fixture", "assert_case_parity", "assert_parity", "gradient_difference"]

# Largest difference over the largest published value.
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-6}


def assert_parity(ours: Tensor, theirs: Tensor) -> None:
    """Check max|ours - theirs| <= bound * max|theirs|."""
    assert ours.shape == theirs.shape
    error = (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()
    assert error <= BOUNDS[ours.dtype], f"relative error {error:.3g}"


def assert_case_parity(name: str) -> None:
    """Check the backbone of a fixture in float32 and float64: its logits, and its feature maps."""
    with torch.no_grad():
        for case in cases(name):
            for dtype, bound in BOUNDS.items():
                error = case.error(case.module.to(dtype)(case.x.to(dtype)))
                assert error <= bound, f"{name}, {list(case.published)}, {dtype}: error {error:.3g}"


def gradient_difference(module: nn.Module, reference: nn.Module) -> float:
    """Return the largest difference between two modules' gradients, over the largest gradient."""
    theirs = dict(reference.named_parameters())
    largest = max(p.grad.abs().max() for p in theirs.values())
    return max(
        float((p.grad - theirs[name].grad).abs().max() / largest)
        for name, p in module.named_parameters()
    )
