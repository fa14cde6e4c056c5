"""mmengine's checkpoint loading without running code, and with a check of how much it fills.

Everything that mmengine and its siblings load passes `CheckpointLoader.load_checkpoint` and
`load_state_dict`: `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`, `init_model` and the
inferencers. `SafeLoading` replaces these two functions. Other calls of `torch.load`, as in a hook
of your own, are unchanged.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader, load_state_dict
from torch import Tensor, nn

from mmseg_ext.checkpoint.files import read_checkpoint, read_torch_file
from mmseg_ext.errors import CheckpointError

_AUXILIARY = "auxiliary_head"  # heads that only training uses

# The least share of a backbone's values, and whether all that testing uses must be filled.
_required = contextvars.ContextVar("required", default=(0.9, False))


@contextlib.contextmanager
def require_coverage(
    backbone_share: float | None = None, entire_model: bool | None = None
) -> Iterator[None]:
    """Refuse weights that fill less than this in the context; None keeps the outer setting.

    Args:
        backbone_share: the least share of the backbone's values, 0 to 1.
        entire_model: everything but the auxiliary heads, as testing needs it.

    Raises:
        ValueError: for a share outside 0 to 1.
    """
    if backbone_share is not None and not 0 <= backbone_share <= 1:
        raise ValueError(f"min_backbone_share must be between 0 and 1, not {backbone_share}")
    given = zip((backbone_share, entire_model), _required.get(), strict=True)
    before = _required.set(tuple(outer if new is None else new for new, outer in given))
    try:
        yield
    finally:
        _required.reset(before)


def _coverage(
    module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str = ""
) -> tuple[float, list[str]]:
    """Return the share of the module's values that `state_dict` fills, and the unfilled names.

    An entry fills a value if its name, after `prefix`, and its shape are the same. Counters of
    batches are ignored.
    """
    own = {k: v for k, v in module.state_dict().items() if "num_batches_tracked" not in k}
    left = [k for k, v in own.items() if _shape(state_dict.get(prefix + k)) != tuple(v.shape)]
    values = sum(value.numel() for value in own.values())
    missing = sum(own[name].numel() for name in left)
    return (1 - missing / values if values else 1.0), left


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def unwrap_model(module: nn.Module) -> nn.Module:
    """Return the model inside wrappers for several processes and for test-time augmentation."""
    while is_model_wrapper(module) or isinstance(module, BaseTTAModel):
        module = module.module
    return module


def _listed(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return (", ".join(names[:shown]) or "nothing") + more


def check_coverage(module: nn.Module, state_dict: Mapping[str, Tensor]) -> str:
    """Return one line about how much of the module `state_dict` fills.

    Raises:
        CheckpointError: if it fills less than `require_coverage` demands of the backbone (of the
            module, if it has no backbone), or of everything that testing uses.
    """
    module = unwrap_model(module)
    least, entire_model = _required.get()
    share, left = _coverage(module, state_dict)
    line = f"weights fill {share:.1%} of {type(module).__name__}"
    part, part_left, name = share, left, type(module).__name__
    if isinstance(getattr(module, "backbone", None), nn.Module):
        part, part_left = _coverage(module.backbone, state_dict, "backbone.")
        name = f"the backbone ({type(module.backbone).__name__})"
        line += f", {part:.1%} of its backbone"
    if part < least:
        raise CheckpointError(
            f"the weights fill {part:.1%} of {name}, less than {least:.0%}; not filled: "
            f"{_listed(part_left)}; the file has {_listed(sorted(map(str, state_dict)))}; to use "
            "them anyway, set min_backbone_share=0 (--cfg-options min_backbone_share=0, or "
            "mmseg_ext.safe_loading(min_backbone_share=0) in Python)"
        )
    own, needed = module.state_dict(), [key for key in left if not key.startswith(_AUXILIARY)]
    if entire_model and needed:
        given = {key: _shape(state_dict.get(key)) for key in needed}
        found = [
            f"{k} ({f'{s} for {_shape(own[k])}' if s else 'missing'})" for k, s in given.items()
        ]
        raise CheckpointError(
            f"the weights leave {len(needed)} entries of {type(module).__name__} at random values: "
            f"{_listed(found)}; use weights of the same model and classes"
        )
    return line + (f"; not filled: {_listed(left)}" if left else "")


def check_finite(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if infinities or NaNs would replace finite values."""
    bad = [
        name
        for name, value in unwrap_model(module).state_dict().items()
        if isinstance(given := state_dict.get(name), Tensor)
        and not given.isfinite().all()
        and value.isfinite().all()
    ]
    if bad:
        raise CheckpointError(
            f"the weights are not finite: {_listed(bad)}; the training run diverged: use an "
            "earlier checkpoint"
        )


def load_and_report(
    module: nn.Module, state_dict: Mapping[str, Tensor], strict: bool = False, logger=None
) -> None:
    """Check `state_dict`, load it as mmengine does, and log how much of the module it fills.

    mmengine loads what fits and mentions the rest among other warnings, so a backbone can stay at
    random values unnoticed.
    """
    names = unwrap_model(module).state_dict()
    headless = bool(names) and all(name.startswith("backbone.") for name in names)
    if headless and not any(str(name).startswith("backbone.") for name in state_dict):
        # mmpretrain's classifier around a backbone that returns logits has no other weights, and
        # `convert` writes the backbone's names.
        state_dict = {f"backbone.{name}": value for name, value in state_dict.items()}
    check_finite(module, state_dict)
    load_state_dict(module, state_dict, strict, logger)  # backbones refuse published names here
    print_log(check_coverage(module, state_dict), logger="current")


def load_checkpoint(
    filename: str, map_location: object = None, logger: object = "current"
) -> object:
    """Load a local file or an address as mmengine's `CheckpointLoader`, without running code.

    Configs in the file are removed: they are Python programs, which mmengine's `Runner.resume` and
    its inferencers would execute.
    """
    if Path(filename).expanduser().is_file():
        print_log(f"Loads checkpoint from {filename}", logger=logger)
        content = read_checkpoint(filename, map_location)
    else:  # an address, or FileNotFoundError
        content = _fetch(filename, map_location, logger)
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CheckpointError(f"{filename}: contains no state dict")
    if weights is not content:
        if not isinstance(content.get("meta"), dict):
            content["meta"] = {}  # which `init_model` expects
        hub = content.get("message_hub")
        for part in (content["meta"], *(hub.values() if isinstance(hub, dict) else ())):
            for key in ("cfg", "config") if isinstance(part, dict) else ():
                part.pop(key, None)
    return content


_load_address = CheckpointLoader.load_checkpoint


def _fetch(address: str, map_location: object, logger: object) -> object:
    """Load an address by mmengine, with `torch.load` replaced for the time of the call.

    mmengine's loaders and `torch.hub` call it without `weights_only`.
    """

    def read(file: object, map_location: object = None, **settings: object) -> object:
        if isinstance(file, (str, Path)):
            return read_checkpoint(file, map_location)
        return read_torch_file(file, address, map_location)

    before, torch.load = torch.load, read
    try:
        return _load_address(address, map_location, logger)
    finally:
        torch.load = before


def _install() -> Callable[[], None]:
    """Replace mmengine's two functions, and return a function that puts them back."""
    before = vars(CheckpointLoader)["load_checkpoint"], mmengine_checkpoint.load_state_dict

    def restore() -> None:
        CheckpointLoader.load_checkpoint, mmengine_checkpoint.load_state_dict = before

    CheckpointLoader.load_checkpoint = staticmethod(load_checkpoint)
    mmengine_checkpoint.load_state_dict = load_and_report
    return restore


class SafeLoading(contextlib.AbstractContextManager):
    """See `mmseg_ext.safe_loading`."""

    _entered: list["SafeLoading"] = []  # references, which keep the context of a plain call alive
    _restore: Callable[[], None]

    def __init__(self, min_backbone_share: float | None = None):
        self._coverage = require_coverage(min_backbone_share)
        self._coverage.__enter__()
        if not self._entered:
            SafeLoading._restore = staticmethod(_install())
        self._entered.append(self)

    def __exit__(self, *error) -> None:
        self._coverage.__exit__(None, None, None)
        self._entered.remove(self)
        if not self._entered:
            self._restore()
