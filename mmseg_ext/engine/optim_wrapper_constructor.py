"""Parameter groups by role: convolution weights, normalisation weights, biases.

EANet (arXiv 2105.02358) was trained on VOC with three groups (published `train_torch.py`,
`get_params`): the weights of convolutions at the learning rate with weight decay, the weights of
normalisation layers without decay, and every bias, those of normalisation layers included, at twice
the rate without decay. mmengine's `bias_lr_mult` leaves the biases of normalisation layers out.
"""

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
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
