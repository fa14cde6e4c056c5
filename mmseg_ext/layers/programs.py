"""Differences of layers in compiled, exported and traced programs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmseg_ext.torch_versions import has_static_value, is_compiling


def is_recorded() -> bool:
    """Check if a program is compiled, exported or traced."""
    return is_compiling() or torch.jit.is_tracing()


def is_fixed(*sizes: int) -> bool:
    """Check if all sizes are plain numbers, not symbolic and not traced."""
    if torch.jit.is_tracing():
        return False
    if not is_compiling() and all(isinstance(size, int) for size in sizes):
        return True
    return all(has_static_value(size) for size in sizes)


def recomputed(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Return `function(*arguments)`; with gradients, compute it again in the backward pass.

    Recorded programs keep intermediate results instead. `function` draws no random numbers.
    """
    if is_recorded() or not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
