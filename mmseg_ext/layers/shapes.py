"""Shapes of the layers' inputs: wrong ones refused in one sentence, free ones recognised."""

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value


def is_fixed(*sizes: int) -> bool:
    """Whether the sizes are numbers: not those of a program for any size, nor a tracer's."""
    return not torch.jit.is_tracing() and all(has_static_value(size) for size in sizes)


def require_map(x: Tensor, channels: int, name: str = "x") -> None:
    """x is (B, channels, H, W).

    Raises:
        ValueError: for another shape; it names the remedy for a map whose channels come last.
    """
    if x.ndim == 4 and x.shape[1] == channels:
        return
    hint = ""
    if x.ndim == 4 and x.shape[3] == channels:
        hint = "; its channels come last: x.permute(0, 3, 1, 2)"
    raise ValueError(f"{name} must be (B, {channels}, H, W), got {tuple(x.shape)}{hint}")


def require_channels_last_map(x: Tensor, channels: int) -> None:
    """x is (B, H, W, channels).

    Raises:
        ValueError: for another shape; it names the remedy for a map whose channels come first.
    """
    if x.ndim == 4 and x.shape[3] == channels:
        return
    hint = ""
    if x.ndim == 4 and x.shape[1] == channels:
        hint = "; its channels come first: x.permute(0, 2, 3, 1)"
    raise ValueError(f"x must be (B, H, W, {channels}), got {tuple(x.shape)}{hint}")


def require_tokens(x: Tensor, width: int) -> None:
    """x is (B, N, width).

    Raises:
        ValueError: for another shape; it names the remedy for a map, and for tokens whose width is
            the second dimension.
    """
    if x.ndim == 3 and x.shape[2] == width:
        return
    hint = ""
    if x.ndim == 3 and x.shape[1] == width:
        hint = "; its tokens come last: x.transpose(1, 2)"
    elif x.ndim == 4 and x.shape[1] == width:
        hint = "; tokens of a map are x.flatten(2).transpose(1, 2)"
    raise ValueError(f"x must be (B, N, {width}), got {tuple(x.shape)}{hint}")
