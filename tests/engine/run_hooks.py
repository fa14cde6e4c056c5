"""Hooks for runs under test; a config names this module in `custom_imports`."""

import os
import signal
import threading
import time
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
class KillWhileSaving(Hook):
    """SIGKILL `delay` seconds into the saving of iteration `iteration`'s checkpoint."""

    def __init__(self, iteration: int, delay: float):
        self.iteration, self.delay = iteration, delay

    def before_save_checkpoint(self, runner, checkpoint):
        if runner.iter + 1 == self.iteration:
            threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 > self.iteration:
            time.sleep(60)  # the kill came late: the iteration after the checkpoint must not end


class Crash(Exception):
    """What `CrashAt` raises."""


@HOOKS.register_module()
class CrashAt(Hook):
    """Raise `Crash` after iteration `iteration`, before anything is saved there."""

    def __init__(self, iteration: int):
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.iteration:
            raise Crash


@HOOKS.register_module()
class CrashInValidation(Hook):
    """Raise `Crash` in the validation of iteration `iteration`: at its first image, or at `end`,
    when its scores are logged and not saved."""

    priority = "LOW"  # after the logger, before the checkpoint hook

    def __init__(self, iteration: int, end: bool = False):
        self.iteration, self.end = iteration, end

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.iteration and not self.end:
            raise Crash

    def after_val_epoch(self, runner, metrics=None):
        if runner.iter == self.iteration and self.end:
            raise Crash


@HOOKS.register_module()
class SpoilLossAt(Hook):
    """Give the loss of iteration `iteration` (and of those after it, up to `last`) a value."""

    def __init__(self, iteration: int, value: float, last: int = 0):
        self.iterations = range(iteration, max(iteration, last) + 1)
        self.value = value

    def before_train(self, runner):
        parse = runner.model.parse_losses

        def spoiled(losses):
            loss, logged = parse(losses)
            wrong = runner.iter + 1 in self.iterations
            return loss * (self.value if wrong else 1.0), logged

        runner.model.parse_losses = spoiled


@HOOKS.register_module()
class SignalAt(Hook):
    """Send signal `number` at iteration `iteration` to this process or to its group."""

    def __init__(self, iteration: int, number: int, group: bool = False):
        self.iteration, self.number, self.group = iteration, number, group

    def before_run(self, runner):
        if self.group:
            os.setpgrp()  # the workers to come are in it, the test is not

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 != self.iteration or get_rank() != 0:
            return
        (os.killpg if self.group else os.kill)(os.getpid(), self.number)


@HOOKS.register_module()
class SignalInValidation(Hook):
    """Send this process SIGTERM at the first image of each validation."""

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        os.kill(os.getpid(), signal.SIGTERM)


@HOOKS.register_module()
class KillOnce(Hook):
    """SIGKILL process `rank` after iteration `iteration`, the first time that comes."""

    def __init__(self, iteration: int, rank: int, marker: str):
        self.iteration, self.rank, self.marker = iteration, rank, Path(marker)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        here = runner.iter + 1 == self.iteration and get_rank() == self.rank
        if here and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
