"""The state that a run sets in its process. Several runs in one process do not change each other.

mmengine sets flags of torch and the random state when a Runner is built, and never resets the
flags. Its visualizers have a fixed name, and an earlier visualizer with this name is used again,
with its folder. Here each run gets its own, if it trains before the next one is built.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.visualization import Visualizer

from mmseg_ext.upstream import forget_instance

_CUDNN = ("benchmark", "deterministic")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC")


class OwnProcessStateHook(Hook):
    """The settings of the newest run, which are undone when the next one is built.

    Create it before the Runner, and call `complete` with the Runner.
    """

    priority = "HIGHEST"
    _newest: "OwnProcessStateHook | None" = None

    def __init__(self, cfg: Config):
        # mmengine keeps visualizers, logs and histories by their names: a run gets its own. Logs
        # are named after the config and the second, so a second run waits for the next second.
        forget_instance(Visualizer, (cfg.get("visualizer") or {}).get("name"))
        name = cfg.get("experiment_name") or Path(cfg.filename or "").stem
        while MessageHub.check_instance_created(f"{name}_{time.strftime('%Y%m%d_%H%M%S')}"):
            time.sleep(0.05)
        newest = OwnProcessStateHook._newest
        if newest is not None:
            for name, value in _read_settings().items():
                # Not if it was changed since; a run without `_own` was not built.
                if newest._own is None or newest._own[name] == value:
                    _set(name, newest._before[name])
        self._before = _read_settings()
        self._own: dict[str, Any] | None = None
        OwnProcessStateHook._newest = self

    def complete(self, runner) -> None:
        """Store the settings of a run that is built, and register this hook."""
        self._own = _read_settings()
        runner.register_hook(self)

    def before_run(self, runner) -> None:
        if OwnProcessStateHook._newest is not self:
            runner.logger.warning(
                "another run was built in this process after this one, and its settings, random "
                "numbers and log file are used; train each run before you build the next one"
            )


def _read_settings() -> dict[str, Any]:
    found: dict[str, Any] = {name: os.environ.get(name) for name in _VARIABLES}
    for name in _CUDNN:
        found[name] = getattr(torch.backends.cudnn, name)
    found["algorithms"] = torch.get_deterministic_debug_mode()
    return found


def _set(name: str, value: Any) -> None:
    if name in _CUDNN:
        setattr(torch.backends.cudnn, name, value)
    elif name == "algorithms":
        torch.set_deterministic_debug_mode(value)
    elif value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
