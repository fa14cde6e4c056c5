"""Hooks for runs under test, registered by `custom_imports` of their configs."""

import os
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class RecordStatistics(Hook):
    """Append the sum of this process's running means in validation to `<path>.<rank>`."""

    def __init__(self, path: str):
        self.path = path

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        means = [b for n, b in runner.model.named_buffers() if n.endswith("running_mean")]
        with Path(f"{self.path}.{get_rank()}").open("a") as file:
            file.write(f"{sum(m.double().sum().item() for m in means):.17g}\n")


@HOOKS.register_module()
class CountExchanges(Hook):
    """Log how often each iteration calls `torch.distributed.all_reduce`; DDP does not call it."""

    def before_train(self, runner):
        self._calls, exchange = [], torch.distributed.all_reduce

        def counted(*args, **kwargs):
            self._calls.append(exchange)
            return exchange(*args, **kwargs)

        torch.distributed.all_reduce = counted

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter:
            runner.logger.info(f"{len(self._calls)} exchanges in iteration {runner.iter}")
        self._calls.clear()


class Crash(Exception):
    """The error of `CrashAt`."""


@HOOKS.register_module()
class CrashAt(Hook):
    """Raise `Crash` at `point` of `iteration` in process `rank`, but not after a restart.

    By default before anything is saved at the iteration.
    """

    def __init__(self, iteration: int, point: str = "after_train_iter", rank: int = 0):
        self.iteration, self.point, self.rank = iteration, point, rank
        setattr(self, point, self._reached)

    def _reached(self, runner, *args, **kwargs):
        iteration = runner.iter + ("train" in self.point)  # counted up after its hooks
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if iteration == self.iteration and get_rank() == self.rank and not restarted:
            self.act()

    def act(self):
        raise Crash


@HOOKS.register_module()
class SignalAt(CrashAt):
    """Send signal `number` to this process or to its group instead."""

    def __init__(self, *args, number: int, group: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.number, self.group = number, group

    def before_run(self, runner):
        if self.group:
            os.setpgrp()  # with the workers to come, without the test

    def act(self):
        (os.killpg if self.group else os.kill)(os.getpid(), self.number)


@HOOKS.register_module()
class SpoilBatch(CrashAt):
    """Replace the numbers of the batch of `iteration` by NaN instead."""

    def __init__(self, iteration: int, rank: int = 0):
        super().__init__(iteration, "before_train_iter", rank)

    _batch: list = []

    def _reached(self, runner, *args, data_batch=None, **kwargs):
        self._batch = data_batch or []
        super()._reached(runner)

    def act(self):
        for numbers in self._batch:
            numbers.fill_(float("nan"))
