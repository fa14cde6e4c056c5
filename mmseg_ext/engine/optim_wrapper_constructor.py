"""Parameter groups by role, and by depth.

By role: convolution weights, normalisation weights, biases.

EANet (arXiv 2105.02358) was trained on VOC with three groups (published `train_torch.py`,
`get_params`): the weights of convolutions at the learning rate with weight decay, the weights of
normalisation layers without decay, and every bias, those of normalisation layers included, at twice
the rate without decay. mmengine's `bias_lr_mult` leaves the biases of normalisation layers out.
"""

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)
_KEYS = ("bias_lr_mult", "bias_decay_mult", "norm_decay_mult")


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class RoleOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor with three groups, in which a normalisation bias is a bias.

    `paramwise_cfg` takes `bias_lr_mult` and `bias_decay_mult` (every bias) and `norm_decay_mult`
    (weights of normalisation layers, and single gains such as DANet's), each 1 where it is not
    given. The optimizer gets one group per role that occurs, in the order weights, normalisation
    weights, biases; frozen parameters stay out, and one that two modules share is taken once.

    Raises:
        ValueError: for another key in `paramwise_cfg`, or an optimizer without `lr` or
            `weight_decay`.
    """

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        unknown = sorted(set(self.paramwise_cfg) - set(_KEYS))
        if unknown:
            raise ValueError(f"paramwise_cfg takes {', '.join(_KEYS)}, not {', '.join(unknown)}")
        for name, value in (("lr", self.base_lr), ("weight_decay", self.base_wd)):
            if value is None:
                raise ValueError(f"optimizer {name} must be given, it is {value}")

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = "", is_dcn_module=None
    ) -> None:
        """Append the groups of `module` and everything below it to `params`."""
        bias_rate, bias_decay, norm_decay = (self.paramwise_cfg.get(key, 1.0) for key in _KEYS)
        weights = {"params": [], "lr": self.base_lr, "weight_decay": self.base_wd}
        norms = {"params": [], "lr": self.base_lr, "weight_decay": self.base_wd * norm_decay}
        biases = {
            "params": [],
            "lr": self.base_lr * bias_rate,
            "weight_decay": self.base_wd * bias_decay,
        }
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
