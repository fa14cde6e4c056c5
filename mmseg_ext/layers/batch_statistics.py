"""Running statistics of a batch norm whose batch statistics were found without its input."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def update_running_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """What `F.batch_norm` does to the buffers: the running variance is the unbiased one.

    `mean` and `variance` (C,) are those of a batch of `count` values per channel.
    """
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1 / float(norm.num_batches_tracked)
    unbiased = variance * (count / max(count - 1, 1))
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)
