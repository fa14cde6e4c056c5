"""Position embeddings at another grid of patches than their own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmseg_ext.layers.precision import autocast_disabled


def positions_at(table: Tensor, own: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(1, 1 + h w, C) of the grid `own` to (1, 1 + h w, C) of `grid`, the class token's first.

    Bicubic where the grids differ. Exported for any size it is interpolated in all of them: at its
    own nothing changes.
    """
    if not any(isinstance(n, torch.SymInt) for n in grid) and grid == own:
        return table
    first, rest = table[:, :1], table[:, 1:]
    rest = rest.transpose(1, 2).unflatten(2, own)  # (1, C, h, w)
    with autocast_disabled(rest):
        rest = F.interpolate(rest, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([first, rest.flatten(2).transpose(1, 2)], dim=1)
