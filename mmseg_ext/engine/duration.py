"""How many iterations fit into some minutes, measured by a few of them and a short validation."""

import contextlib
import math
import time
from tempfile import TemporaryDirectory
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from mmseg_ext.durable.work_dir import on_rank_zero
from mmseg_ext.engine.build import Training, safely
from mmseg_ext.errors import LaunchError
from mmseg_ext.reports.records import read_records
from mmseg_ext.terminal import validations_left

_WARM_UP, _TRIED = 3, 15  # iterations
_LONGEST = 30.0  # seconds of the trial of slow iterations
_VALIDATED = 4  # batches
# The trial writes nothing that is kept, and validates only what it measures.
_TRIAL = {"default_hooks.checkpoint": None, "resume": False}


class _Trial(Hook):
    """Measures the iterations after the first ones, and stops the trial."""

    def __init__(self):
        self.times: list[float] = []

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        for value in (outputs or {}).values():
            getattr(value, "item", lambda: None)()  # waits for a GPU
        self.times.append(time.perf_counter())
        count = len(self.times)
        is_long = self.times[-1] - self.times[0] > _LONGEST
        # Processes with clocks of their own would not stop at the same iteration.
        if count >= _TRIED or (count > _WARM_UP + 1 and on_rank_zero(lambda: is_long)):
            raise _Measured

    @property
    def seconds(self) -> float:
        """The time of an iteration."""
        measured = self.times[min(_WARM_UP, max(0, len(self.times) - 2)) :]
        return (measured[-1] - measured[0]) / max(1, len(measured) - 1)


class _Measured(BaseException):
    """The trial has measured enough; not an error that is explained."""


def iterations_in(minutes: float, training: Training) -> int:
    """Return the iterations of a training with its validations that takes so many minutes.

    Raises:
        LaunchError: if the time is too short for an iteration, or the config counts epochs.
    """
    if minutes <= 0:
        raise LaunchError(f"--minutes {minutes:g}: must be positive")
    with TemporaryDirectory() as folder:
        runner = training.build(changes=_TRIAL, work_dir=folder)
        if "max_iters" not in (runner.cfg.get("train_cfg") or {}):
            raise LaunchError("--minutes: train_cfg has no max_iters; set train_cfg.max_epochs")
        trial, validation = _Trial(), 0.0
        runner.register_hook(trial, "LOWEST")
        count = validations_left(runner, 0)
        with contextlib.suppress(_Measured), safely(runner.cfg, runner.model):
            runner.train()
        if count:
            validation = count * _validation_seconds(runner)
        seconds = on_rank_zero(lambda: trial.seconds)  # all processes train equally long
        validation = on_rank_zero(lambda: validation)
    found = math.floor((60 * minutes - validation) / seconds)
    if found < 2:  # schedules need two
        raise LaunchError(
            f"--minutes {minutes:g}: an iteration takes {seconds:.2g} seconds, and all validations "
            f"{validation:.0f}; set a longer time, or a larger train_cfg.val_interval"
        )
    return found


@torch.no_grad()
def _validation_seconds(runner: Any) -> float:
    """Return the time of a validation, from the time of its first batches."""
    loader, model = runner.val_dataloader, runner.model
    model.eval()
    batches, times = iter(loader), [time.perf_counter()]
    for _ in range(min(_VALIDATED, len(loader))):
        batch = next(batches)
        model.val_step(batch)
        times.append(time.perf_counter())
    # The first batch is slower, and of a single large image the only one.
    measured = times[1:] if len(times) > 2 else times
    return len(loader) * (measured[-1] - measured[0]) / max(1, len(measured) - 1)


def recorded_iterations(cfg: Config) -> int | None:
    """Return the iterations of the run in the work directory, for an exact resume; None if new.

    Raises:
        ValueError: for a damaged record, because another number would change the schedule.
    """

    def read() -> int | None:
        records = [*read_records(cfg.work_dir).values()]
        return records[-1].get("iterations") if records else None

    return on_rank_zero(read)
