"""A config to a Runner that trains or tests: what the tools build, also from Python.

The meaning of the arguments is that of mmsegmentation's flags (1.2.2 and 1.4.2), except:

- `auto_scale_lr` is added, as mmdetection has it. It counts gradient accumulation.
- `amp` runs on the CPU too, in bfloat16.
- A run that torchrun or Slurm starts again resumes by itself.
- `resume` takes the work directory of a fine-tuning config, never its `load_from`. The option
  `load_from=FILE` beside it still counts.
- `tta` takes `StreamingSegTTAModel` where a config names no `tta_model`.
"""

import os
import sys
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmseg_ext.checkpoint.resuming import candidates
from mmseg_ext.engine.amp import enable_amp
from mmseg_ext.engine.build_errors import dataset_warnings, explained, format_error, unread_options
from mmseg_ext.engine.checkpoint_hook import checkpoint_folder
from mmseg_ext.engine.distributed import init_distributed
from mmseg_ext.errors import LaunchError, StackError

_MMSEG_BASE = (
    "mmengine looks for the bases of 'mmseg::' in a distribution called mmsegmentation, and "
    "installing that would overwrite this mmseg; name the file instead: "
    '_base_ = __import__("mmseg").__path__[0] + "/.mim/configs/..."'
)


def load_settings(
    path: str, options: dict | None = None, work_dir: str | None = None, launcher: str = "none"
) -> Config:
    """The config at `path` with `options` merged in.

    The work directory is `work_dir`, else the config's own, else `work_dirs/<config's name>`.

    Raises:
        LaunchError: if the file is missing or does not load, or an option does not fit.
    """
    if not Path(path).is_file():
        raise LaunchError(f"config: there is no file {path!r}")
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # a config is a program: it can fail in any way
        raise LaunchError(f"config {path}: {format_error(_cause(error))}") from error
    cfg.launcher = launcher
    if os.environ.get("RANK", "0") == "0":
        for warning in unread_options(cfg, options or {}):
            print(f"mmseg_ext: {warning}", file=sys.stderr)
    try:
        cfg.merge_from_dict(options or {})
    except (KeyError, IndexError, TypeError, AssertionError) as error:
        raise LaunchError(f"--cfg-options {options}: {format_error(error)}") from error
    cfg.work_dir = work_dir or cfg.get("work_dir") or f"./work_dirs/{Path(path).stem}"
    return cfg


def _cause(error: BaseException) -> BaseException:
    """The error, or what mmengine should have said instead."""
    if "mmsegmentation is not installed" in str(error):
        return LaunchError(_MMSEG_BASE)
    hidden = error  # behind "Failed to import"
    while hidden is not None and not isinstance(hidden, StackError):
        hidden = hidden.__context__
    return hidden or error


def build_train_runner(
    config: str,
    options: dict | None = None,
    work_dir: str | None = None,
    launcher: str = "none",
    resume: bool = False,
    amp: bool = False,
    auto_scale_lr: bool = False,
) -> Runner:
    """The Runner that trains the config at this path; see `load_settings`.

    Raises:
        LaunchError: for whatever keeps the run from starting.
    """
    cfg = load_settings(config, options, work_dir, launcher)
    if amp:
        enable_amp(cfg)
    if auto_scale_lr:
        enable_learning_rate_scaling(cfg)
    _decide_resuming(cfg, resume, options or {})
    return _built(cfg, "train_loop", "val_loop")


def build_test_runner(
    config: str,
    checkpoint: str,
    options: dict | None = None,
    work_dir: str | None = None,
    launcher: str = "none",
    tta: bool = False,
    out: str | None = None,
    show_dir: str | None = None,
    show_seconds: float | None = None,
) -> Runner:
    """The Runner that tests a checkpoint with the config at this path; see `load_settings`.

    `out` is the folder of label maps, `show_dir` that of painted images; with `show_seconds` each
    is on the screen so long.

    Raises:
        LaunchError: for whatever keeps the run from starting.
    """
    cfg = load_settings(config, options, work_dir, launcher)
    if "://" not in checkpoint and not Path(checkpoint).is_file():
        raise LaunchError(f"checkpoint: there is no file {checkpoint!r}")
    cfg.load_from, cfg.resume = checkpoint, False
    if show_dir or show_seconds is not None:
        _draw_predictions(cfg, show_dir, show_seconds)
    if tta:
        _enable_tta(cfg)
    if out is not None:
        metrics = cfg.test_evaluator
        for metric in metrics if isinstance(metrics, list) else [metrics]:
            metric.update(output_dir=out, keep_results=True)
    return _built(cfg, "test_loop")


def _built(cfg: Config, *loops: str) -> Runner:
    """The Runner, with these loops and their datasets."""
    init_distributed(cfg)
    with explained(cfg):
        runner = RUNNERS.build(cfg)
        for loop in loops:
            getattr(runner, loop)
    for warning in dataset_warnings(runner):
        runner.logger.warning(warning)
    if "train_loop" in loops:
        _fit_learning_rate(runner)
    return runner


def _decide_resuming(cfg: Config, resume: bool, options: dict) -> None:
    """Resume from `load_from` where the command line names it, else from the work directory.

    A run that its launcher started again goes on from its own work directory first.
    """
    resume = resume or cfg.get("resume", False)
    named = "load_from" in options
    starts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    restarted = any(int(os.environ.get(name) or 0) > 0 for name in starts)
    own = (restarted or (resume and not named)) and bool(candidates(checkpoint_folder(cfg)))
    if own:
        cfg.load_from = None
    # Else there is nothing to go on from: a first start, from `load_from` where there is one.
    cfg.resume = own or (resume and (named or not cfg.get("load_from")))


def enable_learning_rate_scaling(cfg: Config) -> None:
    """Switch `auto_scale_lr` of the config on.

    Raises:
        LaunchError: if it does not say which batch its learning rate is meant for.
    """
    if (cfg.get("auto_scale_lr") or {}).get("base_batch_size") is None:
        raise LaunchError(
            "--auto-scale-lr: the config has no auto_scale_lr = dict(base_batch_size=...)"
        )
    cfg.auto_scale_lr["enable"] = True


def _fit_learning_rate(runner: Runner) -> None:
    """Tell the factor of `auto_scale_lr`, or warn of a batch that the rate is not meant for.

    The rule is linear (arXiv:1706.02677). mmengine multiplies the rate of every parameter group
    by processes x batch / base_batch_size; accumulated gradients enter through the base.
    """
    scaling = runner.cfg.get("auto_scale_lr") or {}
    batch = (runner.cfg.get("train_dataloader") or {}).get("batch_size")
    base = scaling.get("base_batch_size")
    if base is None or batch is None:
        return
    accumulated = runner.cfg.optim_wrapper.get("accumulative_counts", 1)
    effective = runner.world_size * batch * accumulated
    what = f"configured batch {base}, effective batch {effective}"
    if scaling.get("enable", False):
        runner.auto_scale_lr = {"enable": True, "base_batch_size": base / accumulated}
        runner.logger.info(f"auto-scale-lr: {what}, learning rate x {effective / base:g}")
    elif effective != base:
        runner.logger.warning(
            f"the learning rate is meant for another batch ({what}): pass --auto-scale-lr to "
            f"multiply it by {effective / base:g}"
        )


def _draw_predictions(cfg: Config, show_dir: str | None, seconds: float | None) -> None:
    hook = cfg.get("default_hooks", {}).get("visualization")
    if hook is None:
        raise LaunchError("--show and --show-dir need default_hooks.visualization in the config")
    hook.update(draw=True)
    if seconds is not None:
        hook.update(show=True, wait_time=seconds)
    if show_dir:
        cfg.visualizer["save_dir"] = show_dir


def _enable_tta(cfg: Config) -> None:
    if "tta_pipeline" not in cfg:
        raise LaunchError("--tta: the config has no tta_pipeline")
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    tta = cfg.get("tta_model") or {"type": "StreamingSegTTAModel"}
    tta["module"] = cfg.model
    cfg.model = tta
