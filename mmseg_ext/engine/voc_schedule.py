"""What the published VOC training of EANet has and mmengine lacks (arXiv 2105.02358).

`train_torch.py` there has three groups of parameters (`get_params`): the weights of convolutions at
the learning rate with weight decay, the weights of normalisation layers without decay, and every
bias, those of normalisation layers included, at twice the rate without decay. mmengine's
`bias_lr_mult` leaves the biases of normalisation layers out.

Its `poly_lr_scheduler` sets the rate to `lr * (1 - i / n) ** power` at iterations i that are
multiples of 10 and leaves it alone otherwise. Its loop runs i = 0 ... n inclusive, so that the rate
of the last iteration is zero.
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
    """mmengine's constructor with three groups, in which a normalisation bias is a bias.

    `paramwise_cfg` takes `bias_lr_mult` and `bias_decay_mult` (every bias) and `norm_decay_mult`
    (weights of normalisation layers, and single gains such as DANet's), each 1 where it is not
    given. The optimizer, which needs `lr` and `weight_decay`, gets one group per role that occurs,
    in the order weights, normalisation weights, biases. Frozen parameters stay out, and a parameter
    that two modules share is taken once.

    Raises:
        ValueError: for another key in `paramwise_cfg`.
    """

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = "", is_dcn_module=None
    ) -> None:
        """Append the groups of `module` and everything below it to `params`."""
        unknown = sorted(set(self.paramwise_cfg) - set(_KEYS))
        if unknown:
            raise ValueError(f"paramwise_cfg takes {', '.join(_KEYS)}, not {', '.join(unknown)}")
        bias_rate, bias_decay, norm_decay = (self.paramwise_cfg.get(key, 1.0) for key in _KEYS)
        rate, decay = self.base_lr, self.base_wd
        weights = {"params": [], "lr": rate, "weight_decay": decay}
        norms = {"params": [], "lr": rate, "weight_decay": decay * norm_decay}
        biases = {"params": [], "lr": rate * bias_rate, "weight_decay": decay * bias_decay}
        seen = set()
        for child in module.modules():
            for name, parameter in child.named_parameters(recurse=False):
                if not parameter.requires_grad or parameter in seen:
                    continue
                seen.add(parameter)
                if name == "bias":
                    group = biases
                elif isinstance(child, _NORMS) or parameter.ndim < 2:
                    group = norms
                else:
                    group = weights
                group["params"].append(parameter)
        params.extend(group for group in (weights, norms, biases) if group["params"])


@PARAM_SCHEDULERS.register_module()
class HeldPolyLR(LRSchedulerMixin, PolyParamScheduler):
    """mmengine's `PolyLR` with the value held for `interval` iterations.

    As there, the value reaches `eta_min` at iteration `end - 1`: the published schedule of n
    iterations plus the last one at rate zero is `begin=0, end=n + 1`. `interval` is in iterations
    (in epochs with `by_epoch=True`).
    """

    def __init__(self, optimizer, *args, interval: int = 10, **kwargs):
        self.interval = interval
        super().__init__(optimizer, *args, **kwargs)

    def _get_value(self) -> list[float]:
        step = self.last_step - self.last_step % self.interval
        factor = (1 - step / self.total_iters) ** self.power
        return [self.eta_min + (base - self.eta_min) * factor for base in self.base_values]
