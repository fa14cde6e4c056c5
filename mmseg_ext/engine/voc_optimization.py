"""Optimizer groups and learning rates of EANet's published VOC training (arXiv 2105.02358).

Its `train_torch.py` has three parameter groups (`get_params`): weights of convolutions with weight
decay, weights of normalization layers without decay, and all biases at twice the rate without
decay. mmengine's `bias_lr_mult` skips the biases of normalization layers.

Its `poly_lr_scheduler` sets the rate to `lr * (1 - i / n) ** power` at iterations i that are
multiples of 10, and keeps it in between. Its loop runs i = 0 ... n inclusive, so the last
iteration has rate zero.
"""

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import PolyParamScheduler
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, PARAM_SCHEDULERS
from torch import nn

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # batch and instance norms
_KEYS = ("bias_lr_mult", "bias_decay_mult", "norm_decay_mult")


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class RoleOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor with three parameter groups: weights, norm weights, and biases.

    `paramwise_cfg` accepts `bias_lr_mult` and `bias_decay_mult` (all biases) and `norm_decay_mult`
    (weights of normalization layers, and scalar gains such as DANet's), each 1 by default. The
    optimizer config needs `lr` and `weight_decay`. Empty groups and frozen parameters are left out.
    A shared parameter is added once.

    Raises:
        ValueError: for another key in `paramwise_cfg`.
    """

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = "", is_dcn_module=None
    ) -> None:
        """Append the parameter groups of `module` to `params`."""
        unknown = sorted(set(self.paramwise_cfg) - set(_KEYS))
        if unknown:
            raise ValueError(f"paramwise_cfg: unknown {', '.join(unknown)}; use {', '.join(_KEYS)}")
        bias_rate = self.paramwise_cfg.get("bias_lr_mult", 1.0)
        bias_decay = self.paramwise_cfg.get("bias_decay_mult", 1.0)
        norm_decay = self.paramwise_cfg.get("norm_decay_mult", 1.0)
        rate, decay = self.base_lr, self.base_wd
        weights = {"params": [], "lr": rate, "weight_decay": decay}
        norms = {"params": [], "lr": rate, "weight_decay": decay * norm_decay}
        biases = {"params": [], "lr": rate * bias_rate, "weight_decay": decay * bias_decay}
        for name, parameter in module.named_parameters():  # a shared parameter once
            owner, _, own_name = name.rpartition(".")
            if own_name == "bias":
                group = biases
            elif isinstance(module.get_submodule(owner), _NORMS) or parameter.ndim < 2:
                group = norms
            else:
                group = weights
            if parameter.requires_grad:
                group["params"].append(parameter)
        for group in (weights, norms, biases):
            if group["params"]:
                params.append(group)


@PARAM_SCHEDULERS.register_module()
class HeldPolyLR(LRSchedulerMixin, PolyParamScheduler):
    """mmengine's `PolyLR`, which changes the value only every `interval` iterations.

    Like `PolyLR`, it reaches `eta_min` at iteration `end - 1`. The published schedule has n
    iterations and one more at rate zero: `begin=0, end=n + 1`. `interval` is in iterations (in
    epochs with `by_epoch=True`).
    """

    def __init__(self, optimizer, *args, interval: int = 10, **kwargs):
        self.interval = interval
        super().__init__(optimizer, *args, **kwargs)

    def _get_value(self) -> list[float]:
        step = self.last_step - self.last_step % self.interval
        factor = (1 - step / self.total_iters) ** self.power
        return [self.eta_min + (base - self.eta_min) * factor for base in self.base_values]
