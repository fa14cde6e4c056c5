"""Whether a module computes what its weights say, so that another may take the weights instead."""

from torch import nn
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
    """False where a module has a hook (pruning and weight norm are hooks too), a parametrization,
    a forward of its own or another class: then it has to be called.

    Hooks on all modules of a process are no reason: they tell what runs, and composed maps do.
    """
    return not any(_has_something_on_it(module) for module in modules)


def _has_something_on_it(module: nn.Module) -> bool:
    if type(module) not in _KINDS and type(module).forward is not _BatchNorm.forward:
        return True  # a parametrized module has a class of its own
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    return "forward" in module.__dict__
