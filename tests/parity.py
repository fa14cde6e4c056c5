"""Compare modules with the stored outputs of published code, and with each other."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmseg_ext.doctor.fixtures import Fixture, cases
from tests.models import assert_same, tensors

__all__ = ["Fixture", "assert_case_parity", "assert_parity", "assert_same_function"]

# Largest difference over the largest published value.
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-6}


def assert_parity(ours: Tensor, theirs: Tensor) -> None:
    """Check max|ours - theirs| <= bound * max|theirs|."""
    assert_same(ours.double(), theirs.double(), BOUNDS[ours.dtype])


def assert_case_parity(name: str) -> None:
    """Check the backbone of a fixture in float32 and float64: its logits, and its feature maps."""
    with torch.no_grad():
        for case in cases(name):
            for dtype, bound in BOUNDS.items():
                error = case.error(case.module.to(dtype)(case.x.to(dtype)))
                assert error <= bound, f"{name}, {list(case.published)}, {dtype}: error {error:.3g}"


def assert_same_function(
    module: nn.Module,
    plain: Callable,
    x: Tensor,
    rtol: float = 1e-12,
    form: Callable | None = None,
) -> None:
    """Compare a module's outputs, gradients and buffers with `plain(copy of the module)(x)`.

    `form` (by default the module) computes its outputs.
    """
    twin = copy.deepcopy(module)
    results = []
    for compute, owner in ((form or module, module), (plain(twin), twin)):
        image = x.clone().requires_grad_()
        outputs = tensors(compute(image))
        torch.manual_seed(1)
        # No weight where rounding could switch a ReLU on or off.
        terms = [(y * torch.randn(y.shape) * (y.detach().abs() > 1e-5)).sum() for y in outputs]
        results.append((outputs, torch.autograd.grad(sum(terms), [image, *owner.parameters()])))
    (ours, gradients), (theirs, expected) = results
    assert_same(ours, theirs, rtol)
    assert_same(gradients[0], expected[0], rtol)
    largest = max(g.abs().max() for g in expected[1:])
    for a, b in zip(gradients[1:], expected[1:], strict=True):
        assert (a - b).abs().max() <= rtol * largest
    assert_same(list(module.buffers()), list(twin.buffers()), rtol)
