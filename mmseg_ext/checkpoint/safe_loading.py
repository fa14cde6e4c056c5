"""mmengine's checkpoint loading, made safe while it is asked for: `mmseg_ext.safe_loading`.

mmengine unpickles a file that `weights_only=True` refuses, and fetched files at once. While a
`SafeLoading` lasts, torch never unpickles (`TORCH_FORCE_WEIGHTS_ONLY_LOAD`), local files are read
by `read_checkpoint`, `.safetensors` included, and loaded weights are checked by `load_and_report`.
This reaches `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`, `mmseg.apis.init_model`
and mmengine's inferencers.

A config inside a checkpoint is a program: mmengine's `Runner.resume` executes `meta['config']`, its
inferencers the others. These texts are taken out of what is loaded.
"""

import contextlib
import os
from pathlib import Path

from mmengine.logging import print_log
from mmengine.runner import checkpoint as upstream
from mmengine.runner.checkpoint import CheckpointLoader

from mmseg_ext.checkpoint.load_report import load_and_report, require_coverage
from mmseg_ext.checkpoint.logged_values import from_plain, safe_globals
from mmseg_ext.checkpoint.safe_reading import as_data, read_checkpoint

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
