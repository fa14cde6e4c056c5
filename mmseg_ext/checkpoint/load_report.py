"""How much of a model loaded weights fill, said each time, and refused where it is too little.

mmengine loads what fits and warns of the rest among other lines, so that a backbone can stay at its
random values unnoticed. `load_and_report` does what mmengine's `load_state_dict` does and says so;
`mmseg_ext.safe_loading` puts it in that place, where `load_from`, `--resume`,
`init_cfg=dict(type='Pretrained')`, `tools/test.py` and `mmseg.apis.init_model` all end.
"""

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner.checkpoint import load_state_dict
from torch import Tensor, nn

from mmseg_ext.errors import NonFiniteWeights, PartialWeights

MINIMUM_SHARE = 0.9  # of a backbone's values
_AUXILIARY = "auxiliary_head"  # heads that training alone uses


class _Demand(NamedTuple):
    backbone: float = MINIMUM_SHARE
    whole: bool = False


_DEFAULT = _Demand()
_demand = contextvars.ContextVar("demand", default=_DEFAULT)


@contextlib.contextmanager
def require_coverage(
    backbone_share: float | None = None, whole: bool | None = None
) -> Iterator[None]:
    """Within the context, weights that fill less than this are refused; None leaves as it is.

    Args:
        backbone_share: the least part of a backbone's values, 0 to 1.
        whole: all of the model but its auxiliary heads, as for testing.

    Raises:
        ValueError: for a share outside 0 to 1.
    """
    if backbone_share is not None and not 0 <= backbone_share <= 1:
        raise ValueError(f"min_backbone_share must be between 0 and 1, not {backbone_share}")
    before = _demand.get()
    token = _demand.set(
        _Demand(
            before.backbone if backbone_share is None else backbone_share,
            before.whole if whole is None else whole,
        )
    )
    try:
        yield
    finally:
        _demand.reset(token)


class Coverage(NamedTuple):
    """Values (not tensors) of a module, how many of them the weights have, and the names left."""

    values: int
    filled: int
    left: list[str]

    @property
    def share(self) -> float:
        return self.filled / self.values if self.values else 1.0


def coverage(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str = "") -> Coverage:
    """What `state_dict` fills of `module`, whose names there start with `prefix`.

    A value is filled by an entry of its name and shape; counters of batches do not count.
    """
    values = filled = 0
    left = []
    for name, value in module.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        values += value.numel()
        given = state_dict.get(prefix + name)
        if isinstance(given, Tensor) and given.shape == value.shape:
            filled += value.numel()
        else:
            left.append(name)
    return Coverage(values, filled, left)


def _bare(module: nn.Module) -> nn.Module:
    while is_model_wrapper(module) or isinstance(module, BaseTTAModel):
        module = module.module
    return module


def _names(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def check_coverage(module: nn.Module, state_dict: Mapping[str, Tensor]) -> str:
    """One line that says how much is filled.

    Raises:
        PartialWeights: where less is filled than `require_coverage` asks: of the module's
            backbone, of the module itself where it has none, or of everything that testing uses.
    """
    module = _bare(module)
    demand = _demand.get()
    whole = coverage(module, state_dict)
    part, name = whole, type(module).__name__
    line = f"weights fill {whole.share:.1%} of {name} ({whole.filled:,} of {whole.values:,} values)"
    if isinstance(getattr(module, "backbone", None), nn.Module):
        part = coverage(module.backbone, state_dict, "backbone.")
        name = f"the backbone ({type(module.backbone).__name__})"
        line += f", {part.share:.1%} of its backbone"
    found = _names(sorted(map(str, state_dict))) or "nothing"
    if part.share < demand.backbone:
        raise PartialWeights(
            f"the weights fill {part.share:.1%} of {name}, less than {demand.backbone:.0%}; not "
            f"filled: {_names(part.left)}; the file has {found}; if that is meant, set "
            "min_backbone_share=0 (--cfg-options min_backbone_share=0, or "
            "mmseg_ext.safe_loading(min_backbone_share=0) in Python)"
        )
    left = [key for key in whole.left if not key.startswith(_AUXILIARY)]
    if demand.whole and left:
        raise PartialWeights(
            f"the weights leave {len(left)} entries of {type(module).__name__} at random values: "
            f"{_names([_mismatch(key, module, state_dict) for key in left])}; the file has {found};"
            " they are another model's, or of other classes"
        )
    return line + (f"; not filled: {_names(whole.left)}" if whole.left else "")


def _mismatch(key: str, module: nn.Module, state_dict: Mapping[str, Tensor]) -> str:
    given = state_dict.get(key)
    if not isinstance(given, Tensor):
        return key
    return f"{key} ({tuple(given.shape)} for {tuple(module.state_dict()[key].shape)})"


def check_finite(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """That no infinity and no NaN takes the place of a finite value.

    Raises:
        NonFiniteWeights: naming the entries.
    """
    bad = [
        name
        for name, value in _bare(module).state_dict().items()
        if isinstance(given := state_dict.get(name), Tensor)
        and given.is_floating_point()
        and not given.isfinite().all()
        and value.isfinite().all()
    ]
    if bad:
        raise NonFiniteWeights(
            f"the weights are not finite: {_names(bad)}; the training that wrote them had failed: "
            "take an earlier checkpoint"
        )


def refuse_foreign(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Ask the module and its backbone, where they know weights that are not theirs.

    What they say of another arch or of published names is closer to the cause than a share.
    """
    module = _bare(module)
    for part, prefix in ((module, ""), (getattr(module, "backbone", None), "backbone.")):
        if hasattr(part, "refuse_foreign"):
            part.refuse_foreign(state_dict, prefix)


def _of_the_whole(module: nn.Module, state_dict: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A backbone's own weights under the names of a model that has no other parameters.

    Such a model is a classifier of mmpretrain around a backbone that gives the logits itself, and
    such weights are what the converters write.
    """
    names = _bare(module).state_dict()
    whole = bool(names) and all(name.startswith("backbone.") for name in names)
    if not whole or any(str(name).startswith("backbone.") for name in state_dict):
        return state_dict
    return {f"backbone.{name}": value for name, value in state_dict.items()}


def load_and_report(
    module: nn.Module, state_dict: Mapping[str, Tensor], strict: bool = False, logger=None
) -> None:
    """mmengine's `load_state_dict`, which it takes the place of, with a check and a line before."""
    state_dict = _of_the_whole(module, state_dict)
    refuse_foreign(module, state_dict)
    line = check_coverage(module, state_dict)
    check_finite(module, state_dict)
    load_state_dict(module, state_dict, strict, logger)
    print_log(line, logger="current", level=logging.INFO)
