"""Optimizer steps with few operators: merged parameter groups, and fused kernels on GPUs.

mmengine's `paramwise_cfg` makes a group of each parameter, 283 for DeepViT-S, and an optimizer
starts its operators for each group. A step computes groups with equal settings together. The groups
themselves stay as they are, because schedules, gradient clipping (whose sum depends on the order),
logs and checkpoints use them.
"""

import types
from typing import Any

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

# Types of devices whose new runs take fused steps by default; an empty tuple turns this off.
FUSED_DEVICES: tuple[str, ...] = ("cuda",)


def single_wrappers(wrapper: OptimWrapper | OptimWrapperDict) -> list[OptimWrapper]:
    """Return the wrapper of each optimizer; `OptimWrapperDict` has several."""
    if isinstance(wrapper, OptimWrapperDict):
        return list(wrapper.values())
    return [wrapper]


def merge_groups(optimizer: Optimizer) -> None:
    """Let each `optimizer.step()` compute groups that then have equal settings as one group.

    The results are equal bit by bit. Optimizers of other packages do not change, because their
    steps can use a value of a group, such as the norm of its gradients.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        changed: Any = optimizer
        changed.step = types.MethodType(_step_with_merged_groups, optimizer)


def is_merged(optimizer: Optimizer) -> bool:
    """Return whether steps of the optimizer merge its groups."""
    step = vars(optimizer).get("step")
    return getattr(step, "__func__", None) is _step_with_merged_groups


def _step_with_merged_groups(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    groups = optimizer.param_groups
    optimizer.param_groups = _merged(groups, optimizer)
    try:
        if isinstance(optimizer, SGD):
            _start_late_parameters(optimizer)
        return type(optimizer).step(optimizer, *args, **kwargs)
    finally:
        optimizer.param_groups = groups


def _merged(groups: list[dict], optimizer: Optimizer) -> list[dict]:
    """Return one group for all groups with equal settings, in the order of the first of each."""
    found: dict[tuple, dict] = {}
    for group in groups:
        settings = _settings_of(group, optimizer)
        if settings in found:
            found[settings]["params"] += group["params"]
        else:
            found[settings] = {**group, "params": list(group["params"])}
    return list(found.values())


def _settings_of(group: dict, optimizer: Optimizer) -> tuple:
    """Return the values by which groups are merged."""
    settings = tuple(map(group.get, optimizer.defaults))
    if isinstance(optimizer, SGD):  # fused, it must start all parameters of a group together
        settings += (any(parameter in optimizer.state for parameter in group["params"]),)
    try:
        hash(settings)
    except TypeError:  # of a list, such as `betas` in a config
        settings = tuple(tuple(x) if isinstance(x, list) else x for x in settings)
    return settings


def _start_late_parameters(optimizer: SGD) -> None:
    """Create the momentum of parameters that get their first gradient later than their group.

    torch's fused SGD fails there. Zeros give the same step as no momentum, without dampening.
    """
    for group in optimizer.param_groups:
        has_momentum = group["momentum"] and not group["dampening"]
        if not group.get("fused") or not has_momentum:
            continue
        stepped = [p for p in group["params"] if p.grad is not None]
        late = [p for p in stepped if "momentum_buffer" not in optimizer.state.get(p, ())]
        if len(late) == len(stepped):  # torch starts them all
            continue
        for parameter in late:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def select_fused_steps(optimizer: Optimizer, model: nn.Module) -> None:
    """Let a new run take fused steps where the config leaves the choice and torch supports them."""
    # Parameters do not show that their gradients will be sparse; modules such as embeddings do.
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return
    if optimizer.state or not can_select_fused(optimizer):
        return
    optimizer.defaults["fused"] = True  # for groups that a hook adds
    for group in optimizer.param_groups:
        group["fused"] = True


def can_select_fused(optimizer: Optimizer) -> bool:
    """Return whether steps can be fused by default: the config sets neither `fused` nor `foreach`.

    All parameters must be float32 and on one device of `FUSED_DEVICES`.
    """
    if type(optimizer) not in (SGD, Adam, AdamW) or "fused" not in optimizer.defaults:
        return False  # SGD before torch 2.3
    kinds = set()
    for group in optimizer.param_groups:
        is_set = group["fused"] is not None or group["foreach"] is not None
        has_unfused_option = group["differentiable"] or group.get("dampening")
        if is_set or has_unfused_option:
            return False
        kinds.update((type(p), p.dtype, p.device) for p in group["params"])
    if len(kinds) != 1:
        return False
    kind, dtype, device = kinds.pop()
    is_plain = kind is nn.Parameter and dtype == torch.float32
    return is_plain and device.type in FUSED_DEVICES
