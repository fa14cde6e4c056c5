"""Train and test a config: the functions behind the commands of these names."""

from pathlib import Path
from typing import Any, NamedTuple

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.cost.model_cost import write_cost
from mmseg_ext.engine.amp import bfloat16_autocast
from mmseg_ext.engine.build import Training, build_test_runner, decide_resuming, safely
from mmseg_ext.engine.duration import iterations_in, recorded_iterations
from mmseg_ext.engine.run_checks import SameClasses
from mmseg_ext.errors import LaunchError
from mmseg_ext.reports.results_hook import seen_data
from mmseg_ext.terminal import ProgressHook, logged_warnings


class TrainedRun(NamedTuple):
    """What a training leaves.

    `config` has the options of the run. `checkpoint` is the best one with its `score`, or without
    `save_best` the last one; None if the config saves none.
    """

    work_dir: Path
    config: Path
    checkpoint: Path | None
    score: float | None
    is_segmentor: bool


def train(
    config: str | Path,
    work_dir: str | Path | None = None,
    *,
    options: dict[str, Any] | None = None,
    iterations: int | None = None,
    minutes: float | None = None,
    size: int | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    resume: bool = False,
    launcher: str = "none",
) -> TrainedRun:
    """Train until the run finishes; print its progress.

    Args:
        config: path, or a name of `list_models()`.
        work_dir: folder for logs and checkpoints; by default the config's.
        options: settings that override the config's, such as `{"train_cfg.val_interval": 100}`.
        iterations: length of the training; schedules and intervals keep their shares of it.
        minutes: measure the speed first, and set `iterations` to what fits in this time with its
            validations. A resumed run keeps the number of iterations.
        size: short side of the crops in pixels; images and windows change by the same factor.
        amp: mixed precision.
        auto_scale_lr: fit the learning rate to the effective batch size.
        resume: continue from the newest checkpoint of the work directory, if there is one.
        launcher: how processes are started: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        LaunchError: if the run cannot start with these settings.
        RunError: if it has to stop, such as for a loss that is not finite.
        CheckpointError: if weights or a checkpoint cannot be used.
        SystemExit: with status 0, if a signal has stopped the run; its checkpoint is written.
    """
    if minutes is not None and iterations is not None:
        raise LaunchError("--minutes sets the iterations; omit --iterations")
    folder, options = None if work_dir is None else str(work_dir), options or {}
    training = Training(
        str(config), options, folder, launcher, amp, auto_scale_lr, iterations, size
    )
    with logged_warnings():
        if minutes is not None:
            cfg = training.resolve()
            decide_resuming(cfg, resume, options)  # also by a restart, without the flag
            if cfg.resume:
                training.iterations = recorded_iterations(cfg)
            if training.iterations is None:
                training.iterations = iterations_in(minutes, training)
            print(f"  --minutes {minutes:g}: {training.iterations:,} iterations", flush=True)
        runner = training.build(resume)
        runner.register_hook(ProgressHook())
        if resume:
            runner.register_hook(SameClasses("train_loop"))
        with safely(runner.cfg, runner.model):
            runner.train()
        write_cost(runner)
    place, file = Path(runner.work_dir).resolve(), Path(runner.cfg.filename or "").resolve()
    if options or training.iterations or size:  # the copy in the work directory has them
        file = place / file.name
    info = runner.message_hub.runtime_info
    best = [key for key in info if key.startswith("best_ckpt") and info[key]]
    kept = info[best[0]] if best else info.get("last_ckpt")
    return TrainedRun(
        place,
        file,
        None if kept is None else Path(kept).resolve(),  # with `default_hooks.checkpoint=None`
        info[best[0].replace("ckpt", "score", 1)] if best else None,
        hasattr(unwrap_model(runner.model), "encode_decode"),
    )


def test(
    config: str | Path,
    checkpoint: str | Path,
    work_dir: str | Path | None = None,
    *,
    options: dict[str, Any] | None = None,
    tta: bool = False,
    amp: bool = False,
    out: str | Path | None = None,
    show_dir: str | Path | None = None,
    show_seconds: float | None = None,
    launcher: str = "none",
) -> dict[str, float]:
    """Test a checkpoint on the config's test split, and return its scores.

    The weights must fill the complete model, except for auxiliary heads.

    Args:
        config: path, or a name of `list_models()`.
        checkpoint: file of weights, or address.
        work_dir: folder for the scores, as JSON; by default the config's.
        options: settings that override the config's.
        tta: test-time augmentation by the config's `tta_pipeline`.
        amp: compute in bfloat16.
        out: folder for predicted label maps.
        show_dir: folder for painted images.
        show_seconds: show each painted image on the screen for this time.
        launcher: how processes are started: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        LaunchError: if the test cannot start with these settings.
        CheckpointError: if the checkpoint is damaged or does not fit the model.
    """
    with logged_warnings():
        runner = build_test_runner(
            str(config),
            str(checkpoint),
            options,
            None if work_dir is None else str(work_dir),
            launcher,
            tta,
            None if out is None else str(out),
            None if show_dir is None else str(show_dir),
            show_seconds,
        )
        runner.register_hook(SameClasses("test_loop"))
        autocast = bfloat16_autocast(next(runner.model.parameters()).device, amp)
        loop: Any = runner.test_loop
        loop.fp16 |= amp  # else the loop disables autocast
        seen = seen_data(loop)
        views = f", {seen['views']} views of each" if seen["views"] > 1 else ""
        count = len(loop.dataloader.dataset)
        runner.logger.info(f"test: {count:,} images of {seen['split']}{views}")
        with safely(runner.cfg, entire_model=True), autocast:
            scores = runner.test()
        write_cost(runner)
    return scores
