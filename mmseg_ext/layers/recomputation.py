"""Computing a part of a layer again in the backward pass, instead of keeping its results."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers.input_shapes import is_recorded


def recomputed(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Return `function(*arguments)`; with gradients, without keeping intermediate results.

    Recorded programs and transforms such as `torch.func.grad` do not support this, and keep them.
    `function` draws no random numbers.
    """
    # A part of torch that has no types.
    transforms = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    supported = not is_recorded() and transforms.peek_interpreter_stack() is None
    if not (supported and torch.is_grad_enabled()):
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
