"""Parameter groups of the optimizer: unused settings, and a summary."""

from collections import Counter
from collections.abc import Iterator, Mapping

from mmengine.config import Config
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmseg_ext.errors import LaunchError


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
