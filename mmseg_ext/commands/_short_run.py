"""Train a config from scratch and test it, with a line of progress instead of the full log.

The demos are made of this. mmengine's complete log goes to the work directory as always.
"""

import contextlib
import io
import itertools
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmseg_ext.engine.launch import build_test_runner, build_train_runner
from mmseg_ext.reports.curves import Curve, read_scalars

_SHOWN = ("mIoU", "coco/bbox_mAP", "coco/segm_mAP")
_run_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """A finished run. mIoUs are in [0, 1], over all classes, background included."""

    config: str
    miou: float
    miou_tta: float
    parameters: int
    iterations: int
    seconds: float  # of the training loop, validations included
    curves: dict[str, Curve]
    log: Path
    checkpoint: Path


class ProgressLine(Hook):
    """One line on standard output: iteration, loss, speed, remaining time; a validation's metrics.

    On a terminal the line is rewritten in place; elsewhere a new one is printed every `interval`
    iterations.
    """

    priority = "LOW"

    def __init__(self, interval: int = 100):
        self.interval = interval
        self.on_terminal = sys.stdout.isatty()

    def before_train(self, runner: Runner) -> None:
        self.start, self.first = time.perf_counter(), runner.iter
        self.loss = None

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None):
        loss = float(outputs["loss"])
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        done, total = runner.iter + 1, runner.max_iters
        if done % (10 if self.on_terminal else self.interval) and done != total:
            return
        speed = (done - self.first) / (time.perf_counter() - self.start)
        left = round((total - done) / speed)
        line = (
            f"  iteration {done:>5}/{total}  loss {self.loss:.3f}  "
            f"{speed:4.1f} it/s  ETA {left // 60}:{left % 60:02d}"
        )
        print(f"\r{line}" if self.on_terminal else line, end="" if self.on_terminal else "\n")
        sys.stdout.flush()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        shown = ", ".join(f"{key} {metrics[key]:g}" for key in _SHOWN if key in metrics)
        print(f"{chr(10) if self.on_terminal else ''}  validation: {shown}")


def train_and_test(config: str, work_dir: Path, options: dict | None = None) -> Outcome:
    """Train `config` in `work_dir` and test its last weights, with one scale and with `--tta`.

    `options` are merged into the config, as `--cfg-options` are.
    """
    with log_to_file_only():
        runner = build_train_runner(config, _own_visualizer(options), str(work_dir))
    runner.register_hook(ProgressLine())
    start = time.perf_counter()
    runner.train()
    seconds = time.perf_counter() - start
    checkpoint = work_dir / f"iter_{runner.max_iters}.pth"
    miou, miou_tta = (_test(config, checkpoint, options, tta) for tta in (False, True))
    return Outcome(
        config=config,
        miou=miou,
        miou_tta=miou_tta,
        parameters=sum(p.numel() for p in runner.model.parameters()),
        iterations=runner.max_iters,
        seconds=seconds,
        curves=read_scalars(Path(runner.log_dir) / "vis_data" / "scalars.json"),
        log=Path(runner.log_dir) / f"{runner.timestamp}.log",
        checkpoint=checkpoint,
    )


def _test(config: str, checkpoint: Path, options: dict | None, tta: bool) -> float:
    """mIoU in [0, 1] of a checkpoint, as `tools/test.py [--tta]` measures it."""
    print(f"  testing, {'multi-scale and flip' if tta else 'single scale'}", flush=True)
    folder, options = str(checkpoint.parent), _own_visualizer(options)
    with log_to_file_only():
        metrics = build_test_runner(config, str(checkpoint), options, folder, tta=tta).test()
    return float(metrics["mIoU"]) / 100


def _own_visualizer(options: dict | None) -> dict:
    """The options with a visualizer of the run's own.

    mmengine keeps visualizers by name: under the config's name a second run of the process would
    write its scalars into the first one's folder.
    """
    return {**(options or {}), "visualizer.name": f"short_run_{next(_run_numbers)}"}


def data_root_options(data_root: str) -> dict:
    """Config options that put the datasets of all splits at `data_root`."""
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    return {f"{loader}.dataset.data_root": data_root for loader in loaders}


@contextlib.contextmanager
def log_to_file_only():
    """Runners built inside write their log to the work directory and not to the console.

    mmengine's console handler keeps the standard output that it finds when it is made.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module="mm(cv|seg|det|engine)")
    with contextlib.redirect_stdout(io.StringIO()):
        yield
