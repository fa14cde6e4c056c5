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
    keep: Tensor, constant: int, batch: int, dtype: torch.dtype, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """Return a divisor (B, 1, 1, 1) for each branch.

    `keep` (n,) are the probabilities in float32, `dtype` is the branches'. The first `constant`
    branches are always kept, and draw no numbers. `scale` divides all branches.
    """
    noise = torch.rand(len(keep) - constant, batch, dtype=dtype, device=keep.device)
    noise = F.pad(noise, (0, 0, constant, 0)) if constant else noise
    kept = (noise + keep[:, None]).to(dtype).floor()  # 1 or 0
    return (scale * keep[:, None] / kept)[..., None, None, None].unbind()


def add_divided(x: Tensor, branch: Tensor, divisor: Tensor) -> Tensor:
    """Return x + branch / divisor for tensors (B, H, W, C) and a divisor (B, 1, 1, 1)."""
    return _AddDivided.apply(x, branch, divisor)


class _AddDivided(torch.autograd.Function):
    """One operator forward and one backward, without rounding the quotient to half precision.

    `torch.addcdiv` multiplies the gradient by the inverse instead, which rounds twice.
    """

    @staticmethod
    def forward(ctx, x: Tensor, branch: Tensor, divisor: Tensor) -> Tensor:
        ctx.save_for_backward(divisor)
        ctx.dtype = branch.dtype
        # The divisor is float32. The sum has the dtype that it has without it.
        total = torch.empty_like(x, dtype=torch.promote_types(x.dtype, branch.dtype))
        return torch.addcdiv(x, branch, divisor, out=total)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        (gradient,), (divisor,) = gradients, ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives
            return gradient, (gradient / divisor).to(ctx.dtype), None
        branch = torch.empty_like(gradient, dtype=ctx.dtype)
        return gradient, torch.div(gradient, divisor, out=branch), None
