"""What layers do differently in compiled, exported and traced programs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if hasattr(torch.compiler, "is_compiling"):  # torch 2.3
    is_compiling = torch.compiler.is_compiling
else:
    is_compiling = torch._utils.is_compiling  # type: ignore[attr-defined] (not in newer ones)


def is_recorded() -> bool:
    """Check if a program is compiled, exported or traced."""
    return is_compiling() or torch.jit.is_tracing()


def is_fixed(*sizes: int) -> bool:
    """Check if all sizes are plain numbers, not symbolic and not traced."""
    if torch.jit.is_tracing():
        return False
    if not is_compiling() and all(isinstance(size, int) for size in sizes):
        return True
    # Imported here, because it imports sympy, which eager code does not need.
    from torch.fx.experimental import symbolic_shapes

    has_static_value = getattr(symbolic_shapes, "has_static_value", None)  # missing up to torch 2.4
    return has_static_value is not None and all(has_static_value(size) for size in sizes)


def recomputed(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Return `function(*arguments)`; with gradients, compute it again in the backward pass.

    Recorded programs keep intermediate results instead. `function` draws no random numbers.
    """
    if is_recorded() or not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
