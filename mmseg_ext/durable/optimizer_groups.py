"""Optimizer steps with few operators: groups with equal settings are computed together.

mmengine's `paramwise_cfg` makes a group of each parameter, 283 for DeepViT-S, and an optimizer
starts its operators for each group. The groups themselves stay as they are, because schedules,
gradient clipping (whose sum depends on the order), logs and checkpoints use them.
"""

import types
from typing import Any

from torch.optim import SGD, Optimizer


def merge_groups(optimizer: Optimizer) -> None:
    """Let each `optimizer.step()` compute groups that then have equal settings as one group.

    The results are equal bit by bit. Only torch's own optimizers compute each parameter by itself;
    others can have values of a group, so they do not change.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        changed: Any = optimizer
        changed.step = types.MethodType(_step_with_merged_groups, optimizer)


def _step_with_merged_groups(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
    groups = optimizer.param_groups
    optimizer.param_groups = _merged(groups, optimizer)
    try:
        return type(optimizer).step(optimizer, *args, **kwargs)
    finally:
        optimizer.param_groups = groups


def _merged(groups: list[dict], optimizer: Optimizer) -> list[dict]:
    """Return one group for all groups with equal settings, in the order of the first of each."""
    found: dict[tuple, dict] = {}
    for group in groups:
        key = tuple(map(group.get, optimizer.defaults))
        if isinstance(optimizer, SGD):  # fused, it starts all parameters of a group together
            key += (any(parameter in optimizer.state for parameter in group["params"]),)
        try:
            one = found.get(key)
        except TypeError:  # of a list, such as `betas` in a config
            key = tuple(tuple(value) if isinstance(value, list) else value for value in key)
            one = found.get(key)
        if one is None:
            found[key] = {**group, "params": [*group["params"]]}
        else:
            one["params"] += group["params"]
    return list(found.values())
