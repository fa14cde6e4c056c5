"""Train one config from scratch and test it, with a line of progress instead of the full log.

This is what `make demo` and `make compare` are made of. The complete log of mmengine goes to the
work directory as always.
"""

import contextlib
import io
import itertools
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmseg.apis import inference_model

from mmseg_ext.engine.launch import build_test_runner, build_train_runner, load_settings
from mmseg_ext.engine.load_trained import load_trained
from mmseg_ext.reports.curves import Curve, read_scalars


@dataclass(frozen=True)
class Outcome:
    """A finished run. mIoUs are in [0, 1], over all classes, background included."""

    config: str
    miou: float
    miou_tta: float
    parameters: int
    iterations: int
    train_seconds: float  # the loop's wall time, validations included
    test_seconds: float  # both tests
    curves: dict[str, Curve]
    log: Path
    checkpoint: Path


class ProgressLine(Hook):
    """One line on standard output: iteration, loss, speed, remaining time; mIoU after a validation.

    On a terminal the line is rewritten in place; elsewhere a new one is printed every `interval`
    iterations.
    """

    priority = "LOW"

    def __init__(self, interval: int = 100):
        self.interval = interval
        self.on_terminal = sys.stdout.isatty()

    def before_train(self, runner: Runner) -> None:
        self.start = time.perf_counter()
        self.loss = None

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None):
        loss = float(outputs["loss"])
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        done, total = runner.iter + 1, runner.max_iters
        if done % (10 if self.on_terminal else self.interval) and done != total:
            return
        seconds = time.perf_counter() - self.start
        eta = round(seconds / done * (total - done))
        line = (
            f"  iteration {done:>5}/{total}  loss {self.loss:.3f}  "
            f"{done / seconds:4.1f} it/s  ETA {eta // 60}:{eta % 60:02d}"
        )
        print(f"\r{line}" if self.on_terminal else line, end="" if self.on_terminal else "\n")
        sys.stdout.flush()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        print(
            f"{'' if not self.on_terminal else chr(10)}  validation: mIoU {metrics['mIoU']:.1f} %"
        )


def train_and_test(config: str, work_dir: Path, options: dict | None = None) -> Outcome:
    """Train `config` in `work_dir` and test its last weights, with one scale and with `--tta`.

    `options` are merged into the config, as `--cfg-options` are.
    """
    with log_to_file_only():
        runner = build_train_runner(config, _own_visualizer(options), str(work_dir))
    runner.register_hook(ProgressLine())
    start = time.perf_counter()
    runner.train()
    trained = time.perf_counter()
    scalars = read_scalars(Path(runner.log_dir) / "vis_data" / "scalars.json")
    checkpoint = work_dir / f"iter_{runner.max_iters}.pth"
    miou, miou_tta = (test(config, checkpoint, work_dir, options, tta=tta) for tta in (False, True))
    return Outcome(
        config=config,
        miou=miou,
        miou_tta=miou_tta,
        parameters=sum(p.numel() for p in runner.model.parameters()),
        iterations=runner.max_iters,
        train_seconds=trained - start,
        test_seconds=time.perf_counter() - trained,
        curves=scalars,
        log=Path(runner.log_dir) / f"{runner.timestamp}.log",
        checkpoint=checkpoint,
    )


def test(
    config: str, checkpoint: Path, work_dir: Path, options: dict | None = None, tta: bool = False
) -> float:
    """mIoU in [0, 1] of a checkpoint, as `tools/test.py [--tta]` measures it."""
    print(f"  testing, {'multi-scale and flip' if tta else 'single scale'}", flush=True)
    with log_to_file_only():
        runner = build_test_runner(
            config, str(checkpoint), _own_visualizer(options), str(work_dir), tta=tta
        )
        metrics = runner.test()
    return float(metrics["mIoU"]) / 100


_run_numbers = itertools.count()


def _own_visualizer(options: dict | None) -> dict:
    """mmengine keeps visualizers by name: under the config's name a second run of the process
    would write its scalars into the first one's folder."""
    return {**(options or {}), "visualizer.name": f"short_run_{next(_run_numbers)}"}


def predict(outcome: Outcome, images: list[np.ndarray]) -> list[np.ndarray]:
    """Labels (H, W) of images (H, W, 3) uint8 RGB, at their own scale, with the run's weights."""
    with contextlib.redirect_stdout(_Nowhere()):
        model, _ = load_trained(load_settings(outcome.config), outcome.checkpoint)
    results = [inference_model(model, image[..., ::-1]) for image in images]  # mmseg reads BGR
    return [r.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8) for r in results]


@contextlib.contextmanager
def log_to_file_only():
    """Runners built inside write their log to the work directory and not to the console.

    mmengine's console handler keeps the standard output it finds when it is made.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module="mm(cv|seg|det|engine)")
    with contextlib.redirect_stdout(_Nowhere()):
        yield


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)
