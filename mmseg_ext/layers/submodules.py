"""Helpers of layers that compute with their submodules' weights instead of calling them."""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Sequential, nn.Dropout, nn.SyncBatchNorm)


def computes_by_weights(*modules: nn.Module) -> bool:
    """Check if the weights of the modules determine their results.

    Modules with hooks (as for pruning), a parametrization, a replaced forward or another class have
    to be called. Global hooks of the process do not count, since they only observe.
    """
    # A parametrized module has a generated class, so the comparison of types rejects it.
    return all(
        (type(module) in _KINDS or type(module).forward is _BatchNorm.forward)
        and not does_more_than_forward(module)
        for module in modules
    )


def does_more_than_forward(module: nn.Module) -> bool:
    """Check if calling the module runs hooks or a replaced `forward`."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any((*hooks, module._backward_pre_hooks, "forward" in module.__dict__))


def sync_group(norm: nn.Module) -> "distributed.ProcessGroup | None":
    """Return the processes whose statistics a norm shares; None if only this process counts."""
    if not (isinstance(norm, nn.SyncBatchNorm) and norm.training):
        return None
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    group: Any = norm.process_group or distributed.group.WORLD
    return group if distributed.get_world_size(group) > 1 else None


def sum_over_processes(x: Tensor, group: "distributed.ProcessGroup") -> Tensor:
    """Return the sum of the processes' tensors; their gradients are summed too, as in SyncBN."""
    return _SumOverProcesses.apply(x, group)


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group, x = group, x.contiguous().clone()
        distributed.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return _SumOverProcesses.apply(gradient, ctx.group), None


@torch.no_grad()
def update_running_statistics(
    norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int | Tensor
) -> None:
    """Update the buffers of `norm` as `F.batch_norm` does.

    `mean` and `variance` (C,) are the biased statistics of a batch with `count` values per channel.
    """
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    others = count - 1
    others = others.clamp(min=1) if isinstance(others, Tensor) else max(others, 1)
    unbiased = variance * (count / others)  # batch norm stores the unbiased variance
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        assert running is not None
        running.lerp_(value.to(running.dtype), momentum)
