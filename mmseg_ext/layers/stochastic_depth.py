"""Stochastic depth for all residual branches of a stage, with mmcv's random numbers.

mmcv's `DropPath` computes `y.div(keep) * (keep + rand).floor()` for each branch y, with the
probability `keep` that an image has the branch. Here all branches draw their numbers together, in
their order, so on a CPU they are the same. Each branch is divided only once: by `keep`, or by
infinity, which gives the zeros of mmcv's product.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def branch_divisors(
    keep: Tensor, constant: int, batch: int, dimensions: int, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """Return a divisor (B, 1, ..., 1) for each branch, with the `dimensions` of the branches.

    `keep` (n,) are the probabilities in float32. The first `constant` branches are always kept,
    and draw no numbers. `scale` divides all branches.
    """
    noise = torch.rand(len(keep) - constant, batch, device=keep.device)
    if constant:
        noise = F.pad(noise, (0, 0, constant, 0))
    kept = (noise + keep[:, None]).floor()  # 1 or 0
    divisors = scale * keep[:, None] / kept  # (n, B)
    shape = [len(keep), batch] + [1] * (dimensions - 1)
    return divisors.view(shape).unbind()
