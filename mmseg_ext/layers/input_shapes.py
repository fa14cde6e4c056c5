"""Shapes of inputs: the order of their dimensions, and checks."""

from torch import Tensor


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)  # (B, C, H, W)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)  # (B, H, W, C)


def head_width(embed_dim: int, num_heads: int) -> int:
    """Return the channels of a head; raise a ValueError unless the heads share them evenly."""
    if num_heads < 1 or embed_dim % num_heads:
        raise ValueError(f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}")
    return embed_dim // num_heads


def require_map(x: Tensor, channels: int, last: bool = False) -> None:
    """Raise a ValueError unless x is (B, channels, H, W), or with `last` (B, H, W, channels)."""
    if last:
        axis, other_axis = 3, 1
        wanted = f"(B, H, W, {channels})"
        repair = "its channels come first: x.permute(0, 2, 3, 1)"
    else:
        axis, other_axis = 1, 3
        wanted = f"(B, {channels}, H, W)"
        repair = "its channels come last: x.permute(0, 3, 1, 2)"
    if x.ndim == 4 and x.shape[axis] == channels:
        return
    hint = ""
    if x.ndim == 4 and x.shape[other_axis] == channels:
        hint = f"; {repair}"
    raise ValueError(f"x must be {wanted}, got {tuple(x.shape)}{hint}")


def require_tokens(x: Tensor, width: int) -> None:
    """Raise a ValueError unless x is (B, N, width)."""
    if x.ndim != 3 or x.shape[2] != width:
        hint = ""
        if x.ndim == 3 and x.shape[1] == width:
            hint = "; its tokens come last: x.transpose(1, 2)"
        raise ValueError(f"x must be (B, N, {width}), got {tuple(x.shape)}{hint}")
