"""The optimizer state of a checkpoint, fitted to the optimizer that continues with it.

torch takes all settings of the groups from a checkpoint, also those that select the implementation.
Its fused implementations check neither shapes nor memory layouts, so a state of another size ends
the process with a segmentation fault.
"""

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor
from torch.optim import Optimizer

from mmseg_ext.errors import CheckpointError

# They select how torch computes a step, and its sign.
_OF_THE_CONFIG = ("fused", "foreach", "capturable", "differentiable", "maximize")


def fit_optimizer_state(wrapper: OptimWrapper | OptimWrapperDict, saved: dict, name: str) -> None:
    """Prepare `saved`, from the checkpoint `name`, for `wrapper.load_state_dict`, in place.

    The groups keep the implementation that the config selects, and each state tensor gets the
    memory layout of its parameter.

    Raises:
        CheckpointError: for other groups, or a state tensor of another shape than its parameter, if
            the optimizer has a fused implementation. States of other optimizers can have any shape.
    """
    try:
        if isinstance(wrapper, OptimWrapperDict):
            for key, part in wrapper.items():
                _fit(part.optimizer, saved[key])
        else:
            _fit(wrapper.optimizer, saved)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{name}: its optimizer state does not fit this model and optimizer ({reason}); to "
            f"start from its weights, use --cfg-options load_from={name} without --resume"
        ) from error


def _fit(optimizer: Optimizer, saved: dict) -> None:
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for key in _OF_THE_CONFIG:
            if key in own:
                group[key] = own[key]
            else:
                group.pop(key, None)
        if "fused" not in optimizer.defaults:
            continue
        for number, parameter in zip(group["params"], own["params"], strict=True):
            state = saved["state"].get(number, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.ndim > 0:
                    state[key] = laid_out_as(parameter, value, key)


def laid_out_as(parameter: Tensor, value: Tensor, name: str) -> Tensor:
    """Return `value` with the device and the memory layout of `parameter`, called `name` in errors.

    Raises:
        ValueError: for another shape.
    """
    shapes = tuple(value.shape), tuple(parameter.shape)
    if shapes[0] != shapes[1]:
        raise ValueError(f"{name} has the shape {shapes[0]} for a parameter of shape {shapes[1]}")
    if value.stride() == parameter.stride():
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
