"""For layers that compute with their submodules' weights instead of calling the submodules."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_KINDS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Sequential,
    nn.Dropout,
    nn.LayerNorm,
    nn.SyncBatchNorm,
)


def computes_by_weights(*modules: nn.Module) -> bool:
    """Whether the modules' weights say all that they compute.

    A module with a hook (pruning and weight norm are hooks too), a parametrization, a forward of
    its own or another class has to be called. Hooks on all modules of a process do not count: they
    observe what runs.
    """
    # A parametrized module has a class of its own.
    return all(
        (type(module) in _KINDS or type(module).forward is _BatchNorm.forward)
        and not does_more_than_forward(module)
        for module in modules
    )


def does_more_than_forward(module: nn.Module) -> bool:
    """Whether a call of the module runs more, or something else, than its class's `forward`."""
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    return "forward" in module.__dict__


@torch.no_grad()
def update_running_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """What `F.batch_norm` does to the buffers: the running variance is the unbiased one.

    `mean` and `variance` (C,) are those of a batch of `count` values per channel.
    """
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1 / float(norm.num_batches_tracked)
    unbiased = variance * (count / max(count - 1, 1))
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        assert running is not None
        running.lerp_(value.to(running.dtype), momentum)
