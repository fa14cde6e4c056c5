"""The state of the optimizer and the schedules of a checkpoint, when a run resumes.

mmengine loads it. Before, `fit_optimizer_state` checks that it fits, because torch's fused steps
would read and write other memory if it did not. The state contains settings, too: a learning rate
that was changed in the config has no effect on a resumed run. So the settings before and after are
compared.
"""

from collections import defaultdict
from typing import Any

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor
from torch.optim import Optimizer

from mmseg_ext.durable.optimizer_groups import can_select_fused
from mmseg_ext.errors import CheckpointError, one_line

# States that torch's fused steps read and write without a check of their size.
_LIKE_PARAMETERS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")
# Settings by which optimizers differ.
_KINDS = ("betas", "momentum", "dampening", "alpha", "rho", "etas", "lr_decay")
# They select how torch computes a step, and its sign.
_OF_THE_CONFIG = ("fused", "foreach", "capturable", "differentiable", "maximize")

# By names such as 'lr' and 'PolyLR.power', the values of all groups and schedules as texts.
Settings = dict[str, set[str]]

# Entries of a parameter group that are not its settings, or that the config selects.
_OTHER_ENTRIES = {"params", "param_names", "fused"}
# What schedules count.
_COUNTS = ("last_step", "best", "num_bad_epochs", "cooldown_counter")


def fit_optimizer_state(wrapper: OptimWrapper | OptimWrapperDict, saved: dict, name: str) -> None:
    """Prepare `saved`, from the checkpoint `name`, for `wrapper.load_state_dict`, in place.

    The groups keep the implementation that the config selects. If the config leaves the choice, the
    run continues with fused steps if it began with them. Each state tensor gets the memory layout
    of its parameter.

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
        raise CheckpointError(
            f"{name}: its optimizer state does not fit this model and optimizer "
            f"({one_line(error, 200)}); to start from its weights, use --cfg-options "
            f"load_from={name} without --resume"
        ) from error


def _fit(optimizer: Optimizer, saved: dict) -> None:
    leaves_choice = can_select_fused(optimizer)
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for key in _KINDS:  # newer versions of torch add other settings
            if (key in own) != (key in group):
                raise ValueError(f"only one of the two optimizers has {key}")
        keeps_fused = leaves_choice and group.get("fused") is True
        for key in _OF_THE_CONFIG:
            if key in own:
                group[key] = own[key]
            else:
                group.pop(key, None)
        if keeps_fused:
            group["fused"] = True
        if "fused" not in optimizer.defaults:
            continue
        counted_on_device = group.get("fused") or group.get("capturable")
        for number, parameter in zip(group["params"], own["params"], strict=True):
            _fit_state(saved["state"].get(number, {}), parameter, counted_on_device)


def _fit_state(state: dict, parameter: Tensor, counted_on_device: bool) -> None:
    for key, value in state.items():
        if not isinstance(value, Tensor):
            continue
        if key == "step":
            # On a GPU, torch's other steps would wait for the number of each parameter.
            device = parameter.device if counted_on_device else "cpu"
            state[key] = laid_out_as(value.new_empty((), device=device), value, key)
        elif value.ndim > 0 or key in _LIKE_PARAMETERS:
            state[key] = laid_out_as(parameter, value, key)


def laid_out_as(parameter: Tensor, value: Tensor, name: str) -> Tensor:
    """Return `value` with the device and the memory layout of `parameter`, called `name` in errors.

    Raises:
        ValueError: for another shape.
    """
    given, own = tuple(value.shape), tuple(parameter.shape)
    if given != own:
        raise ValueError(f"{name} has the shape {given} for a parameter of shape {own}")
    if value.stride() == parameter.stride():
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def stored_settings(wrapper: Any, schedules: Any) -> Settings:
    """Return the settings in the states of an optimizer wrapper and of the schedules."""
    found: Settings = defaultdict(set)
    for group in _in_one_list(wrapper.param_groups):
        # Schedules change these entries; 'initial_lr' is the first 'lr'.
        scheduled = {k.removeprefix("initial_") for k in group if k.startswith("initial_")}
        if "momentum" in scheduled:
            scheduled.add("betas")  # Adam's form of it
        for key, value in group.items():
            if key not in _OTHER_ENTRIES and key not in scheduled:
                found[key.removeprefix("initial_")].add(_as_text(value))
    for schedule in _in_one_list(schedules or []):
        for key, value in schedule.state_dict().items():
            is_counted = key in _COUNTS or key.startswith("_")
            if isinstance(value, float | int) and not is_counted:
                found[f"{type(schedule).__name__}.{key}"].add(_as_text(value))
    return found


def _in_one_list(items: Any) -> list:
    """Return a list, or the elements of the lists that several optimizers have by their names."""
    if not isinstance(items, dict):
        return items
    elements = []
    for part in items.values():
        elements.extend(part)
    return elements


def _as_text(value: Any) -> str:
    """Return a value as text, integers as floats: 1 and 1.0 are the same setting."""
    return str(float(value) if isinstance(value, int) else value)


def report_replaced_settings(runner: Any, configured: Settings, filename: str) -> None:
    """Warn of settings that the resumed checkpoint has replaced.

    The schedules are the checkpoint's, too. A longer run continues after their end.

    Args:
        configured: the `stored_settings` before the states were loaded.

    Raises:
        CheckpointError: if they end with a learning rate of 0, and the config's do not.
    """
    changed = []
    for name, values in stored_settings(runner.optim_wrapper, runner.param_schedulers).items():
        if name in configured and values != configured[name]:
            before = " and ".join(sorted(configured[name]))
            changed.append(f"{name} is {' and '.join(sorted(values))}, not {before}")
    left = runner.max_iters - runner.iter
    rates = [float(group["lr"]) for group in _in_one_list(runner.optim_wrapper.param_groups)]
    states = [one.state_dict() for one in _in_one_list(runner.param_schedulers or [])]
    have_ended = all(state["_global_step"] + 1 >= state["end"] for state in states)
    is_idle = left > 0 and have_ended and max(rates) < 1e-12  # but for rounding
    if is_idle and changed:
        raise CheckpointError(
            f"{filename}: its schedules have ended with a learning rate of 0, so the other "
            f"{left} iterations would train nothing ({'; '.join(changed)}); start a new run "
            f"from the weights, without --resume, with --cfg-options load_from={filename}"
        )
    if is_idle:
        runner.logger.warning(
            f"param_scheduler: has ended with a learning rate of 0, so the other {left} "
            "iterations train nothing; set a later end"
        )
    if changed:
        runner.logger.warning(
            f"{filename}: the checkpoint overrides settings of the config ({'; '.join(changed)}"
            "); to use the config's, start a new run from the weights (load_from)"
        )
