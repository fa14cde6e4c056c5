"""Helpers of layers that compute with their submodules' weights instead of calling them."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Sequential, nn.Dropout, nn.SyncBatchNorm)


def computes_by_weights(*modules: nn.Module) -> bool:
    """Check if the weights of the modules determine their results.

    Modules with hooks (as for pruning), a parametrization, a replaced forward or another class have
    to be called. Global hooks of the process do not count, since they only observe.
    """
    for module in modules:
        # A parametrized module has a generated class, so the comparison of types rejects it.
        is_known = type(module) in _KINDS or type(module).forward is _BatchNorm.forward
        if not is_known or does_more_than_forward(module):
            return False
    return True


def does_more_than_forward(module: nn.Module) -> bool:
    """Check if calling the module runs hooks or a replaced `forward`."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or "forward" in module.__dict__


@torch.no_grad()
def update_running_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the buffers of `norm` as `F.batch_norm` does.

    `mean` and `variance` (C,) are the biased statistics of a batch with `count` values per channel.
    """
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:  # the mean of all batches
        momentum = 1 / float(norm.num_batches_tracked)
    unbiased = variance * (count / max(count - 1, 1))  # batch norm stores the unbiased variance
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        assert running is not None
        running.lerp_(value.to(running.dtype), momentum)
