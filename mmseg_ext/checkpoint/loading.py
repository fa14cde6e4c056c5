"""mmengine's checkpoint loading, made safe while it is asked for: `mmseg_ext.safe_loading`.

mmengine unpickles a file that `weights_only=True` refuses, and fetched files at once. While a
`SafeLoading` lasts, torch never unpickles (`TORCH_FORCE_WEIGHTS_ONLY_LOAD`), local files are read
by `read_checkpoint`, `.safetensors` included, and loaded weights are checked by `load_and_report`.
This reaches `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`, `mmseg.apis.init_model`
and mmengine's inferencers.

A config inside a checkpoint is a program: mmengine's `Runner.resume` executes `meta['config']`, its
inferencers the others. These texts are taken out of what is loaded.

mmengine loads what fits and warns of the rest among other lines, so that a backbone can stay at its
random values unnoticed. Here each load says how much of the model it fills; too little is refused.
"""

import contextlib
import contextvars
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import checkpoint as upstream
from mmengine.runner.checkpoint import CheckpointLoader, load_state_dict
from torch import Tensor, nn

from mmseg_ext.checkpoint.files import as_data, read_checkpoint
from mmseg_ext.checkpoint.logged_values import from_plain, safe_globals
from mmseg_ext.errors import CheckpointError

_AUXILIARY = "auxiliary_head"  # heads that training alone uses

_demand = contextvars.ContextVar("demand", default=(0.9, False))  # backbone's share, whole model


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
    asked = zip((backbone_share, whole), _demand.get(), strict=True)
    before = _demand.set(tuple(old if new is None else new for new, old in asked))
    try:
        yield
    finally:
        _demand.reset(before)


def _coverage(
    module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str = ""
) -> tuple[float, list[str]]:
    """The share of the module's values that `state_dict` fills, and the names of the others.

    A value is filled by an entry of its name, after `prefix`, and shape. Counters of batches do not
    count.
    """
    own = {k: v for k, v in module.state_dict().items() if "num_batches_tracked" not in k}
    left = [k for k, v in own.items() if _shape(state_dict.get(prefix + k)) != tuple(v.shape)]
    values = sum(value.numel() for value in own.values())
    missing = sum(own[name].numel() for name in left)
    return (1 - missing / values if values else 1.0), left


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def unwrap_model(module: nn.Module) -> nn.Module:
    """The model inside the wrappers of several processes and of test-time augmentation."""
    while is_model_wrapper(module) or isinstance(module, BaseTTAModel):
        module = module.module
    return module


def _names(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return (", ".join(names[:shown]) or "nothing") + more


def check_coverage(module: nn.Module, state_dict: Mapping[str, Tensor]) -> str:
    """One line that says how much is filled.

    Raises:
        CheckpointError: where less is filled than `require_coverage` asks: of the module's
            backbone, of the module itself where it has none, or of everything that testing uses.
    """
    module = unwrap_model(module)
    least, whole = _demand.get()
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
            f"{_names(part_left)}; the file has {_names(sorted(map(str, state_dict)))}; if that is "
            "meant, set min_backbone_share=0 (--cfg-options min_backbone_share=0, or "
            "mmseg_ext.safe_loading(min_backbone_share=0) in Python)"
        )
    needed = [key for key in left if not key.startswith(_AUXILIARY)]
    if whole and needed:
        shapes = ((_shape(state_dict.get(k)), _shape(module.state_dict()[k])) for k in needed)
        found = [f"{given} for {own}" if given else "missing" for given, own in shapes]
        described = [f"{key} ({what})" for key, what in zip(needed, found, strict=True)]
        raise CheckpointError(
            f"the weights leave {len(needed)} entries of {type(module).__name__} at random values: "
            f"{_names(described)}; they are another model's, or of other classes"
        )
    return line + (f"; not filled: {_names(left)}" if left else "")


def check_finite(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """That no infinity and no NaN takes the place of a finite value.

    Raises:
        CheckpointError: naming the entries.
    """
    bad = [
        name
        for name, value in unwrap_model(module).state_dict().items()
        if isinstance(given := state_dict.get(name), Tensor)
        and not given.isfinite().all()
        and value.isfinite().all()
    ]
    if bad:
        raise CheckpointError(
            f"the weights are not finite: {_names(bad)}; the training that wrote them had failed: "
            "take an earlier checkpoint"
        )


def load_and_report(
    module: nn.Module, state_dict: Mapping[str, Tensor], strict: bool = False, logger=None
) -> None:
    """mmengine's `load_state_dict` with the checks and a line about what is filled."""
    names = unwrap_model(module).state_dict()
    headless = bool(names) and all(name.startswith("backbone.") for name in names)
    if headless and not any(str(name).startswith("backbone.") for name in state_dict):
        # A classifier of mmpretrain around a backbone that gives the logits itself: the backbone's
        # own weights, which `convert` writes, are all of it.
        state_dict = {f"backbone.{name}": value for name, value in state_dict.items()}
    check_finite(module, state_dict)
    load_state_dict(module, state_dict, strict, logger)  # backbones refuse published names here
    print_log(check_coverage(module, state_dict), logger="current")


_ENVIRONMENT = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0"}
_fetch = CheckpointLoader.load_checkpoint


def load_checkpoint(
    filename: str, map_location: object = None, logger: object = "current"
) -> object:
    """mmengine's `CheckpointLoader.load_checkpoint`, without the configs that a file holds."""
    if Path(filename).expanduser().is_file():
        print_log(f"Loads checkpoint from {filename}", logger=logger)
        content = read_checkpoint(filename, map_location)
    else:  # an address, or FileNotFoundError
        with as_data(filename):
            content = from_plain(_fetch(filename, map_location, logger))
    if isinstance(content, dict) and "state_dict" in content:
        meta = content.setdefault("meta", {})  # without it `init_model` fails
        hub = content.get("message_hub") or {}
        for part in (meta, hub.get("runtime_info"), hub.get("resumed_keys")):
            for key in ("cfg", "config"):
                (part or {}).pop(key, None)
    return content


class SafeLoading(contextlib.AbstractContextManager):
    """See `mmseg_ext.safe_loading`."""

    _asking: list["SafeLoading"] = []
    _before: tuple[dict, list]

    def __init__(self, min_backbone_share: float | None = None):
        self._demand = contextlib.ExitStack()
        self._demand.enter_context(require_coverage(min_backbone_share))
        if not self._asking:
            safe = [
                (CheckpointLoader, "load_checkpoint", staticmethod(load_checkpoint)),
                (upstream, "load_state_dict", load_and_report),
            ]
            if hasattr(upstream, "get_torch_safe_globals"):  # mmengine 0.10.7 has none
                safe.append((upstream, "get_torch_safe_globals", safe_globals))
            replaced = [(owner, name, vars(owner)[name]) for owner, name, _ in safe]
            SafeLoading._before = {k: os.environ.get(k) for k in _ENVIRONMENT}, replaced
            os.environ.update(_ENVIRONMENT)
            for owner, name, function in safe:
                setattr(owner, name, function)
        self._asking.append(self)

    def __exit__(self, *error) -> None:
        self._demand.close()
        self._asking.remove(self)
        if self._asking:
            return
        environment, replaced = self._before
        for name in environment:
            del os.environ[name]
        os.environ.update({k: v for k, v in environment.items() if v is not None})
        for owner, name, function in replaced:
            setattr(owner, name, function)
