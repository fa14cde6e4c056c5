"""Shapes of the layers' inputs. A wrong one is refused in one sentence, with the remedy."""

import torch
from torch import Tensor


def is_fixed(*sizes: int) -> bool:
    """Whether the sizes are numbers: not those of a program for any size, nor a tracer's."""
    if torch.jit.is_tracing():
        return False
    if not torch.compiler.is_compiling() and all(isinstance(size, int) for size in sizes):
        return True
    from torch.fx.experimental import symbolic_shapes  # and sympy, which eager code needs not

    has_static_value = getattr(symbolic_shapes, "has_static_value", None)  # torch 2.4 has none
    return has_static_value is not None and all(has_static_value(size) for size in sizes)


def require_map(x: Tensor, channels: int, name: str = "x") -> None:
    """Raise a ValueError unless x is (B, channels, H, W)."""
    if x.ndim != 4 or x.shape[1] != channels:
        last = x.ndim == 4 and x.shape[3] == channels
        hint = "; its channels come last: x.permute(0, 3, 1, 2)" if last else ""
        raise ValueError(f"{name} must be (B, {channels}, H, W), got {tuple(x.shape)}{hint}")


def require_channels_last_map(x: Tensor, channels: int) -> None:
    """Raise a ValueError unless x is (B, H, W, channels)."""
    if x.ndim != 4 or x.shape[3] != channels:
        first = x.ndim == 4 and x.shape[1] == channels
        hint = "; its channels come first: x.permute(0, 2, 3, 1)" if first else ""
        raise ValueError(f"x must be (B, H, W, {channels}), got {tuple(x.shape)}{hint}")


def require_tokens(x: Tensor, width: int) -> None:
    """Raise a ValueError unless x is (B, N, width)."""
    if x.ndim != 3 or x.shape[2] != width:
        hint = ""
        if x.ndim in (3, 4) and x.shape[1] == width:
            tokens = "x.transpose(1, 2)" if x.ndim == 3 else "x.flatten(2).transpose(1, 2)"
            hint = f"; its tokens come last: {tokens}"
        raise ValueError(f"x must be (B, N, {width}), got {tuple(x.shape)}{hint}")
