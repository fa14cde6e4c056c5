"""Hooks for runs under test; a config names this module in `custom_imports`."""

import os
import signal
from pathlib import Path

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class RecordLoss(Hook):
    """Append 'iteration loss' of this process to the file `<path>.<rank>`."""

    def __init__(self, path: str):
        self.path = path

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        with Path(f"{self.path}.{get_rank()}").open("a") as file:
            file.write(f"{runner.iter + 1} {outputs['loss'].item():.9g}\n")


@HOOKS.register_module()
class KillAt(Hook):
    """End the process after iteration `iteration` as a lost machine does: SIGKILL, no clean-up."""

    def __init__(self, iteration: int):
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)
