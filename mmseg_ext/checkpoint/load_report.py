"""How much of a model loaded weights fill, said each time, and refused where it is too little.

mmengine loads what fits and warns of the rest among other lines, so that a backbone can stay at its
random values unnoticed. Importing `mmseg_ext` puts `load_and_report` in the place of mmengine's
`load_state_dict`, which `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`,
`tools/test.py` and `mmseg.apis.init_model` all end in.
"""

import contextlib
import contextvars
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import checkpoint as stack
from torch import Tensor, nn

from mmseg_ext.checkpoint.errors import PartialWeights

MINIMUM_SHARE = 0.9  # of a backbone's values
_minimum = contextvars.ContextVar("minimum_share", default=MINIMUM_SHARE)


@contextlib.contextmanager
def minimum_share(share: float) -> Iterator[None]:
    """Within the context, backbones filled to less than `share` (0 to 1) are refused.

    Raises:
        ValueError: for a share outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"minimum share must be between 0 and 1, not {share}")
    token = _minimum.set(share)
    try:
        yield
    finally:
        _minimum.reset(token)


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
        PartialWeights: where the module's backbone, or the module itself where it has none, is
            filled to less than the minimum share.
    """
    module = _bare(module)
    whole = coverage(module, state_dict)
    part, name = whole, type(module).__name__
    line = f"weights fill {whole.share:.1%} of {name} ({whole.filled:,} of {whole.values:,} values)"
    if isinstance(getattr(module, "backbone", None), nn.Module):
        part = coverage(module.backbone, state_dict, "backbone.")
        name = f"the backbone ({type(module.backbone).__name__})"
        line += f", {part.share:.1%} of its backbone"
    if part.share < _minimum.get():
        found = _names(sorted(state_dict))
        raise PartialWeights(
            f"the weights fill {part.share:.1%} of {name}, less than {_minimum.get():.0%}; not "
            f"filled: {_names(part.left)}; the file has {found or 'nothing'}; if that is meant, "
            "set min_backbone_share=0 (--cfg-options min_backbone_share=0, or "
            "mmseg_ext.checkpoint.load_report.minimum_share(0) around the call)"
        )
    return line + (f"; not filled: {_names(whole.left)}" if whole.left else "")


def refuse_foreign(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Ask the module and its backbone, where they know weights that are not theirs.

    What they say of another arch or of published names is closer to the cause than a share.
    """
    module = _bare(module)
    for part, prefix in ((module, ""), (getattr(module, "backbone", None), "backbone.")):
        if hasattr(part, "refuse_foreign"):
            part.refuse_foreign(state_dict, prefix)


_load = stack.load_state_dict


@functools.wraps(_load)
def load_and_report(module, state_dict, strict=False, logger=None):
    refuse_foreign(module, state_dict)
    line = check_coverage(module, state_dict)
    _load(module, state_dict, strict, logger)
    print_log(line, logger="current", level=logging.INFO)


def report_every_load() -> None:
    """Put `load_and_report` in the place of mmengine's `load_state_dict`."""
    stack.load_state_dict = load_and_report
