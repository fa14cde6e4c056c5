"""Progress in a terminal, and few lines of a run.

mmengine logs some four hundred lines before the first iteration, and Python's warnings go past its
log. Here a filter of the logger's terminal hides the long and useless records, by their beginnings,
and warnings go to the log. The log file of a run has all lines.
"""

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop
from rich.console import Console
from rich.progress import track

from mmseg_ext.errors import one_line

# Long records of the start: the environment, the config, the order of the hooks, and the settings
# of each parameter.
_LONG = (
    "-----",
    "Config:",
    "Hooks will be executed in the following order",
    "paramwise_options",
    "Distributed training is not used",
)
# mmengine's lines of each interval and of each validation, and the name of the experiment.
_REPLACED = ("Iter(", "Epoch(", "Exp name:")
# Warnings of runs with default settings, which nobody can act on.
_USELESS = (
    '"FileClient" will be',
    '"HardDiskBackend" is the alias',
    "The prefix is not set in metric",
    "Default ``avg_non_ignore``",
    "The draw is False",
    "Fail to import ``MultiScaleDeformable",
    "`optimizer.step()` has been overridden",
)


_FIRST_LINE, _NEXT_LINES = 10, 30  # seconds until a line of a slow training
_SHARE = 0.1  # of the time, for validations


def progress(items: Iterable, text: str, total: int) -> Iterable:
    """Yield `items` with a progress bar, if there are several and the terminal can show one."""
    console = Console(stderr=True)
    if total == 1 or not console.is_terminal:
        return items  # a hidden bar of rich starts a thread and waits for its end
    return track(items, text, total, console=console)


def quiet_terminal(logger: logging.Logger, beginnings: tuple[str, ...] = _LONG) -> None:
    """Hide records that begin with these texts on the logger's terminal, but not in its files.

    By default these are the four hundred lines before the first iteration. Useful warnings are
    shown.
    """

    def is_shown(record: logging.LogRecord) -> bool:
        text = record.getMessage().lstrip()
        if record.levelno > logging.INFO:
            return not any(part in text for part in _USELESS)
        return not text.startswith(beginnings)

    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(is_shown)


@contextlib.contextmanager
def logged_warnings() -> Iterator[None]:
    """Write Python's warnings to mmengine's current log, and so to its file."""

    def log(message, category, filename, lineno, file=None, line=None) -> None:
        text = f"{filename}:{lineno}: {category.__name__}: {message}"
        print_log(text, logger="current", level=logging.WARNING)

    with warnings.catch_warnings():
        warnings.showwarning = log  # as Python's documentation allows
        yield


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print Python's warnings as lines, without the code that warned."""

    def show(message: object, *place: object) -> None:
        print(f"warning: {one_line(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show  # as Python's documentation allows
        yield


def validations_left(runner: Any, done: int) -> int:
    """Return how many validations follow after `done` iterations."""
    loop = getattr(runner, "train_loop", None)
    if loop is None or runner.val_loop is None:
        return 0
    last = runner.max_iters
    if isinstance(loop, EpochBasedTrainLoop):
        done, last = done // len(loop.dataloader), loop.max_epochs
    interval, first = loop.val_interval, max(done, loop.val_begin - 1)
    after_the_last = last % interval > 0 and last > first  # mmengine validates at the end, too
    return max(0, last // interval - first // interval + after_the_last)


class ProgressHook(Hook):
    """Print iteration, loss, speed and time left, as often as `LoggerHook` logs.

    Slow trainings and validations have a line ten seconds after their start, and then every half
    minute. The speed does not count validations, and the first iteration, which starts workers and
    chooses kernels. The time left counts the validations from the first one on.
    """

    priority = "VERY_LOW"

    def before_train(self, runner) -> None:
        self.start = time.perf_counter()
        self.first = runner.iter
        self.is_warm = self.is_estimated = self.is_advised = False
        self.validation: float | None = None  # seconds of the last one
        self.next_time = self.start + _FIRST_LINE
        intervals = [hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self.interval = min(intervals, default=50)
        quiet_terminal(runner.logger, _REPLACED)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        done, total, now = runner.iter + 1, runner.max_iters, time.perf_counter()
        speed = (done - self.first) / (now - self.start)
        if not self.is_warm:
            self.is_warm, self.first, self.start = True, done, now
        is_logged = done % self.interval == 0 or done == total
        if not is_main_process() or (not is_logged and now < self.next_time):
            return
        is_measured = done - self.first >= 3
        self.next_time = now + (_NEXT_LINES if is_measured else _FIRST_LINE)
        seconds = (total - self.first) / speed
        if is_measured and not self.is_estimated and seconds >= 60:
            self.is_estimated = True
            about = timedelta(seconds=round(seconds))  # 1:02:03, or 1 day, 2:03:04
            print(f"  the training takes about {about}, and the time of its validations")
        line = f"  iteration {done:>{len(str(total))}}/{total}"
        loss = runner.message_hub.log_scalars.get("train/loss")
        # Between the lines of the log, reading the loss would wait for a GPU.
        if loss and (is_logged or not torch.cuda.is_initialized()):
            line += f"  loss {loss.mean(self.interval):.3f}"
        seconds = (total - done) / speed + validations_left(runner, done) * (self.validation or 0)
        left = timedelta(seconds=round(seconds))
        print(f"{line}  {speed:.3g} it/s  {left} left", flush=True)

    def before_val(self, runner) -> None:
        self.start_of_validation = time.perf_counter()
        self.next_validating = self.start_of_validation + _FIRST_LINE

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        now = time.perf_counter()
        if is_main_process() and now >= self.next_validating:
            self.next_validating = now + _NEXT_LINES
            print(f"  validating: {batch_idx + 1}/{len(runner.val_dataloader)}", flush=True)

    def after_val(self, runner) -> None:
        self.validation = time.perf_counter() - self.start_of_validation
        self.start += self.validation
        count = validations_left(runner, runner.iter + 1)
        if is_main_process() and count and self.validation >= _FIRST_LINE:
            each = timedelta(seconds=round(self.validation))
            print(f"  the validation took {each}; {count} more follow", flush=True)
            self._advise(runner, self.validation)

    def _advise(self, runner, validation: float) -> None:
        """Print once if validations take much of the time, and the interval that changes it.

        The interval is not changed here, because equal runs would then differ with the machine.
        """
        loop, done, last = runner.train_loop, runner.iter + 1 - self.first, runner.max_iters
        if self.is_advised or done < 3:
            return
        self.is_advised = True
        # `start` is later by the time of validations, so these are seconds of iterations.
        seconds = (self.start_of_validation + validation - self.start) / done
        if isinstance(loop, EpochBasedTrainLoop):
            seconds, last = seconds * len(loop.dataloader), loop.max_epochs

        def share(interval: int) -> float:
            return validation / (validation + interval * seconds)

        if share(loop.val_interval) > _SHARE:
            interval = min(last, round(validation * (1 / _SHARE - 1) / seconds))
            print(
                f"  validations take {share(loop.val_interval):.0%} of the time; "
                f"train_cfg.val_interval={interval} makes it {share(interval):.0%}",
                flush=True,
            )

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        if is_main_process():
            shown = ", ".join(f"{name} {value:g}" for name, value in (metrics or {}).items())
            print(f"  validation: {shown}", flush=True)
