"""What a run sets in its process, so that several runs in one process do not change each other.

mmengine sets flags of torch and the random state when a Runner is built, and never resets the
flags. Its visualizers have a fixed name, and an earlier one of that name is used again, with its
folder. Here each run gets its own, and runs can also be built first and trained later.
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

from mmseg_ext.durable.randomness import random_state, set_random_state
from mmseg_ext.upstream import forget_instance, make_current

_CUDNN = ("benchmark", "deterministic")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC")


class OwnProcessStateHook(Hook):
    """The settings of a run, which are those of the process while the run is the newest.

    Create it before the Runner, and call `complete` with the Runner. If another run has been built
    since, the settings become the process's again when the run starts.
    """

    priority = "HIGHEST"
    _newest: "OwnProcessStateHook | None" = None

    def __init__(self, cfg: Config):
        _forget_names(cfg)
        self._own: dict[str, Any] | None = None
        self._replace_newest()

    def complete(self, runner) -> None:
        """Store the settings of a run that is built, and register this hook."""
        self._own = _read_settings()
        self._random = random_state()
        runner.register_hook(self)

    def before_run(self, runner) -> None:
        if OwnProcessStateHook._newest is self:
            return
        self._replace_newest()
        for name, value in (self._own or {}).items():
            _set(name, value)
        set_random_state(self._random)
        for instance in (runner.default_scope, runner.logger, runner.message_hub):
            make_current(instance)
        make_current(runner.visualizer)

    def _replace_newest(self) -> None:
        """Undo what the newest run has set, unless it was changed since."""
        newest = OwnProcessStateHook._newest
        if newest is not None:
            for name, value in _read_settings().items():
                if newest._own is None or newest._own[name] == value:  # None: it was not built
                    _set(name, newest._before[name])
        self._before = _read_settings()
        OwnProcessStateHook._newest = self


def _forget_names(cfg: Config) -> None:
    """Let a run of `cfg` get instances of its own, which mmengine keeps by their names.

    Logger, history and folder are named after the config and the second. So the second run of a
    second waits for the next one.
    """
    forget_instance(Visualizer, (cfg.get("visualizer") or {}).get("name"))
    name = cfg.get("experiment_name") or Path(cfg.filename or "").stem
    while MessageHub.check_instance_created(f"{name}_{time.strftime('%Y%m%d_%H%M%S')}"):
        time.sleep(0.05)


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
