"""A config to a Runner that trains or tests: what the tools build, also from Python.

The meaning of the arguments is that of mmsegmentation's flags (1.2.2 and 1.4.2). Differences, each
deliberate:

- `auto_scale_lr` is added, as mmdetection has it; without it a batch other than the one that the
  learning rate is meant for is a warning. The batch counts gradient accumulation.
- `amp` runs on the CPU too, in bfloat16.
- A run that torchrun or Slurm starts again resumes by itself.
- `resume` never takes `load_from` of a config for a run to resume: a fine-tuning config resumes its
  own work directory. The option `load_from=FILE` beside it still does.
- `tta` takes `StreamingSegTTAModel` where a config names no `tta_model`.
"""

import os
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmseg_ext.checkpoint.resuming import candidates
from mmseg_ext.engine.checkpoint_hook import checkpoint_folder
from mmseg_ext.engine.config_check import check_config, check_options
from mmseg_ext.engine.distributed import init_distributed
from mmseg_ext.engine.pretrained import require_file, require_weights
from mmseg_ext.errors import LaunchError, StackError


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
        raise LaunchError(f"config {path}: {_one_line(_reason(error))}") from error
    cfg.launcher = launcher
    if options:
        check_options(cfg, options)
        try:
            cfg.merge_from_dict(options)
        except (KeyError, IndexError, TypeError, AssertionError) as error:
            raise LaunchError(f"--cfg-options {options}: {_one_line(error)}") from error
    cfg.work_dir = work_dir or cfg.get("work_dir") or f"./work_dirs/{Path(path).stem}"
    return cfg


def load_config(
    path: str, options: dict | None = None, work_dir: str | None = None, launcher: str = "none"
) -> Config:
    """As `load_settings`, with the work directory made.

    Raises:
        LaunchError: as there, or if the work directory cannot be written.
    """
    cfg = load_settings(path, options, work_dir, launcher)
    _make_work_dir(cfg.work_dir)
    return cfg


def _reason(error: Exception) -> BaseException:
    """The missing package that mmengine's "Failed to import" hides, or the error itself."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, StackError):
        inner = inner.__context__
    return inner or error


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _make_work_dir(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"work dir {path!r} cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LaunchError(f"work dir {path!r} cannot be written: Permission denied")


def enable_amp(cfg: Config) -> None:
    kind = cfg.optim_wrapper.type
    if kind in ("AmpOptimWrapper", "PortableAmpOptimWrapper"):
        return
    if kind != "OptimWrapper":
        raise LaunchError(f"--amp needs the optimizer wrapper OptimWrapper, but got {kind}")
    cfg.optim_wrapper.type = "PortableAmpOptimWrapper"


def _require_amp_here(cfg: Config) -> None:
    if cfg.optim_wrapper.get("type") == "AmpOptimWrapper" and get_device() == "cpu":
        raise LaunchError(
            "optim_wrapper.type='AmpOptimWrapper' needs a GPU and none is visible; "
            "'PortableAmpOptimWrapper' runs on the CPU too, in bfloat16"
        )


def _restarted() -> bool:
    """Whether torchrun started this process again, or Slurm requeued its job."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(os.environ.get(name) or 0) > 0 for name in names)


def _set_resume(cfg: Config, resume: bool, options: dict | None) -> None:
    """Resume from `load_from` where the command line names it, else from the work directory.

    A run that its launcher started again goes on from its own work directory first.
    """
    resume = resume or cfg.get("resume", False)
    named = "load_from" in (options or {})
    restarted = _restarted()
    own = (restarted or (resume and not named)) and bool(candidates(checkpoint_folder(cfg)))
    if own:
        cfg.load_from = None
    # Else there is nothing to go on from: a first start, from `load_from` where there is one.
    cfg.resume = own or (resume and (named or not cfg.get("load_from")))


def effective_batch(runner: Runner) -> int:
    """Samples behind one step of the optimizer: processes x batch x accumulated gradients."""
    dataloader = runner.cfg.train_dataloader
    if "batch_size" not in dataloader:
        raise LaunchError(
            "train_dataloader has no batch_size (a batch_sampler?): the effective batch is unknown"
        )
    accumulated = runner.cfg.optim_wrapper.get("accumulative_counts", 1)
    return runner.world_size * dataloader.batch_size * accumulated


def base_batch(cfg: Config, required: bool) -> int | None:
    """The batch that the config's learning rate is meant for.

    Raises:
        LaunchError: if it is `required` and the config has no `auto_scale_lr.base_batch_size`.
    """
    base = (cfg.get("auto_scale_lr") or {}).get("base_batch_size")
    if base is None and required:
        raise LaunchError(
            "--auto-scale-lr: the config has no auto_scale_lr = dict(base_batch_size=...)"
        )
    return base


def set_learning_rate_scaling(cfg: Config, enable: bool) -> int | None:
    """Have the Runner apply `auto_scale_lr` of the config; its batch where there is one.

    The rule is linear (arXiv:1706.02677). mmengine multiplies the rate of every parameter group
    by processes x batch / base_batch_size; accumulated gradients enter through the base.

    Raises:
        LaunchError: if `enable` and the config has no `auto_scale_lr.base_batch_size`.
    """
    base = base_batch(cfg, enable)
    if base is not None and (enable or cfg.auto_scale_lr.get("enable", False)):
        accumulated = cfg.optim_wrapper.get("accumulative_counts", 1)
        cfg.auto_scale_lr = {"enable": True, "base_batch_size": base / accumulated}
    return base


def tell_learning_rate_factor(runner: Runner, base: int) -> None:
    """Print by how much the rate is multiplied, or warn of a batch that does not fit."""
    effective = effective_batch(runner)
    factor = effective / base
    what = f"configured batch {base}, effective batch {effective}"
    if runner.cfg.auto_scale_lr.get("enable", False):
        runner.logger.info(f"auto-scale-lr: {what}, learning rate x {factor:g}")
    elif effective != base:
        runner.logger.warning(
            f"the learning rate is meant for another batch ({what}): pass --auto-scale-lr to "
            f"multiply it by {factor:g}"
        )


def _build_runner(cfg: Config) -> Runner:
    return RUNNERS.build(cfg) if "runner_type" in cfg else Runner.from_cfg(cfg)


def _build_loop(runner: Runner, name: str) -> None:
    """Build the loop and its datasets: missing data, or another recipe's, ends in one message."""
    try:
        getattr(runner, name)
    except (FileNotFoundError, FileExistsError) as error:
        raise LaunchError(f"data: {error}") from error


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
    cfg = load_config(config, options, work_dir, launcher)
    if amp:
        enable_amp(cfg)
    _require_amp_here(cfg)
    check_config(cfg, "train")
    _set_resume(cfg, resume, options)
    require_weights(cfg)
    init_distributed(cfg)
    base = set_learning_rate_scaling(cfg, auto_scale_lr)
    runner = _build_runner(cfg)
    if base is not None:
        runner.cfg.auto_scale_lr["base_batch_size"] = base  # for the record, as configured
        tell_learning_rate_factor(runner, base)
    _build_loop(runner, "train_loop")
    return runner


def _draw_predictions(cfg: Config, show_dir: str | None, seconds: float | None) -> None:
    hook = cfg.get("default_hooks", {}).get("visualization")
    if hook is None:
        raise LaunchError("--show and --show-dir need default_hooks.visualization in the config")
    hook["draw"] = True
    if seconds is not None:
        hook["show"] = True
        hook["wait_time"] = seconds
    if show_dir:
        cfg.visualizer["save_dir"] = show_dir


def _enable_tta(cfg: Config) -> None:
    if "tta_pipeline" not in cfg:
        raise LaunchError("--tta: the config has no tta_pipeline")
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    tta = cfg.get("tta_model") or {"type": "StreamingSegTTAModel"}
    tta["module"] = cfg.model
    cfg.model = tta


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
    cfg.load_from = checkpoint
    cfg.resume = False
    require_file("checkpoint", checkpoint)
    _make_work_dir(cfg.work_dir)
    if show_dir or show_seconds is not None:
        _draw_predictions(cfg, show_dir, show_seconds)
    if tta:
        _enable_tta(cfg)
    if out is not None:
        cfg.test_evaluator["output_dir"] = out
        if cfg.test_evaluator.type == "CityscapesMetric":
            cfg.test_evaluator["keep_results"] = True
    check_config(cfg, "test")
    init_distributed(cfg)
    runner = _build_runner(cfg)
    _build_loop(runner, "test_loop")
    return runner
