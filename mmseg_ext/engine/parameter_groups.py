"""Parameter groups of the optimizer: layer-wise rates, unused settings, and a summary."""

from collections import Counter
from collections.abc import Iterator, Mapping

from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from mmseg_ext.errors import LaunchError


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor with learning rates that decrease from the head to the stem.

    With `paramwise_cfg.layer_decay_rate` r, the rate of a parameter at depth d of n is multiplied
    by r ** (n - 1 - d). The backbone's `get_layer_depth(name, prefix)` returns d and n, as in
    mmpretrain; heads have the full rate. All settings of mmengine's constructor apply, too.

    Raises:
        LaunchError: without `layer_decay_rate`, and for a backbone without `get_layer_depth`.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None):
        # mmengine's constructor calls `add_params` only for settings that are not empty.
        super().__init__(optim_wrapper_cfg, paramwise_cfg or {"layer_decay_rate": None})

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = "", is_dcn_module=None
    ) -> None:
        """Append the parameter groups of `module` to `params`."""
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:  # of a part of the model
            return
        rate = self.paramwise_cfg.get("layer_decay_rate")
        backbone = getattr(module, "backbone", None)
        get_layer_depth = getattr(backbone, "get_layer_depth", None)
        if rate is None or get_layer_depth is None:
            raise LaunchError(
                f"optim_wrapper.paramwise_cfg.layer_decay_rate={rate}: set a number up to 1; the "
                f"backbone must have the method get_layer_depth, and is {type(backbone).__name__}"
            )
        names = {parameter: name for name, parameter in module.named_parameters()}
        for group in params:
            (parameter,) = group["params"]
            depth, count = get_layer_depth(names[parameter], "backbone.")
            group["lr"] = group.get("lr", self.base_lr) * rate ** (count - 1 - depth)


def unused_custom_keys(cfg: Config, model: nn.Module) -> Iterator[str]:
    """Yield a warning for each of `custom_keys` that is in no parameter's name."""
    names, compared = [], []
    for name, _ in model.named_parameters():
        names.append(name)
        # mmengine compares '.name' for a parameter of the model itself.
        compared.append(name if "." in name else f".{name}")
    settings = (cfg.get("optim_wrapper") or {}).get("paramwise_cfg") or {}
    keys = settings.get("custom_keys") or {}
    if not isinstance(keys, Mapping):
        raise LaunchError(
            f"optim_wrapper.paramwise_cfg.custom_keys={keys!r}: set a dict, such as "
            "dict(decode_head=dict(lr_mult=10))"
        )
    for key in keys:
        if not any(key in name for name in compared):
            yield (
                f"optim_wrapper.paramwise_cfg.custom_keys: {key!r} has no effect: no parameter has "
                f"it in its name; use a part of names like {names[0]!r} and {names[-1]!r}"
            )


def describe_groups(wrapper: OptimWrapper | OptimWrapperDict) -> list[str]:
    """Return a line for each learning rate, with its decays, if the parameters have several."""
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    counts: Counter[tuple[float, float]] = Counter()  # of parameters by rate and decay
    for part in wrappers:
        for group in part.optimizer.param_groups:
            # The schedules may have changed the rate already.
            rate = float(group.get("initial_lr", group["lr"]))
            trained = sum(p.numel() for p in group["params"] if p.requires_grad)
            counts[rate, group.get("weight_decay", 0.0)] += trained
    if len(counts) < 2:
        return []
    parts_of: dict[float, list[str]] = {}  # of the line of each rate
    for (rate, decay), number in counts.items():
        parts_of.setdefault(rate, []).append(f"{number:,} parameters with decay {decay:g}")
    lines = []
    for rate in sorted(parts_of, reverse=True):
        lines.append(f"learning rate {rate:.3g}: {', '.join(parts_of[rate])}")
    return lines
