"""Build the Runner that trains or tests a config, or its segmentor.

Arguments of Runners have the meaning of mmsegmentation's flags (1.2.2 and 1.4.2), except:

- `auto_scale_lr` is added, as in mmdetection. It takes gradient accumulation into account.
- `amp` also runs on the CPU, in bfloat16.
- A run that torchrun or Slurm restarts resumes automatically.
- `resume` uses the work directory of a fine-tuning config, never its `load_from`. The option
  `load_from=FILE` on the command line still counts, and `load_from` in a file with `resume=True`.
- `tta` uses `StreamingSegTTAModel` if a config has no `tta_model`.
"""

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mmengine.config import Config
from mmengine.hooks import LoggerHook
from mmengine.logging import MMLogger
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.registry import RUNNERS, init_default_scope
from mmengine.runner import Runner
from torch import nn

from mmseg_ext.checkpoint.files import hashed_name_hint
from mmseg_ext.checkpoint.safe_loading import safe_loading, unwrap_model
from mmseg_ext.durable.levers import LeverHook, prepare_for_gpu
from mmseg_ext.durable.runner import dump_config_of_test
from mmseg_ext.durable.work_dir import find_checkpoints, missing_checkpoint, on_rank_zero
from mmseg_ext.engine.amp import enable_amp
from mmseg_ext.engine.batch import enable_learning_rate_scaling, fit_learning_rate
from mmseg_ext.engine.build_errors import class_named, explained
from mmseg_ext.engine.config import (
    arguments,
    as_list,
    inner_datasets,
    input_channels,
    load_config,
    load_file,
    merge_options,
)
from mmseg_ext.engine.distributed import init_distributed
from mmseg_ext.engine.own_process_state import OwnProcessStateHook
from mmseg_ext.engine.rescaling import rescale
from mmseg_ext.engine.run_checks import check_run
from mmseg_ext.engine.run_record import RunRecordHook
from mmseg_ext.engine.test_time_views import merging_model, unseen_views
from mmseg_ext.errors import LaunchError
from mmseg_ext.reports import RunResultsHook
from mmseg_ext.terminal import quiet_terminal

LOGGED = 40  # losses of a short run


class _QuietRunner(Runner):
    """mmengine's Runner without its four hundred lines on the terminal."""

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        quiet_terminal(logger)
        return logger


class _QuietTestRunner(_QuietRunner):
    def dump_config(self) -> None:
        dump_config_of_test(self)


@contextlib.contextmanager
def safely(
    cfg: Config, model: nn.Module | None = None, entire_model: bool | None = None
) -> Iterator[None]:
    """Build or run what `cfg` names: no weights run code, and errors are explained.

    Everything of this package that builds a model or runs a Runner of any class does it in here.
    See `safe_loading` and `explained` for the arguments.
    """
    with safe_loading(cfg.get("min_backbone_share"), entire_model), explained(cfg, model):
        yield


@dataclass
class Training:
    """The settings of a training: a config, and the flags that change it.

    The file is loaded once, when it is needed first, and its warnings are printed then.
    """

    config: str
    options: dict[str, Any] | None = None
    work_dir: str | None = None
    launcher: str = "none"
    amp: bool = False
    auto_scale_lr: bool = False
    iterations: int | None = None
    size: int | None = None

    @cached_property
    def _of_file(self) -> Config:
        return load_file(self.config, self.options or {})

    def resolve(self, changes: Mapping[str, Any] = {}, work_dir: str | None = None) -> Config:
        """Return the config of the training; see `load_config` and `rescale` for the settings.

        Args:
            changes: further options.
            work_dir: another work directory.

        Raises:
            LaunchError: if a setting does not fit the config.
        """
        cfg = copy.deepcopy(self._of_file)
        rescale(cfg, self.iterations, self.size)  # options are for the rescaled training
        options = {**(self.options or {}), **changes}
        merge_options(cfg, options, work_dir or self.work_dir, self.launcher)
        if self.amp:
            enable_amp(cfg)
        if self.auto_scale_lr:
            enable_learning_rate_scaling(cfg)
        return cfg

    def build(
        self,
        resume: bool = False,
        changes: Mapping[str, Any] = {},
        work_dir: str | None = None,
    ) -> Runner:
        """Build the Runner of the training; see `resolve`.

        Raises:
            LaunchError: if the run cannot start.
        """
        cfg, options = self.resolve(changes, work_dir), {**(self.options or {}), **changes}
        decide_resuming(cfg, resume, options)
        runner = _build(cfg, trains=True)
        if not any(name.startswith("default_hooks.logger") for name in options):
            for hook in runner.hooks:
                if isinstance(hook, LoggerHook):  # the curves of a short run need points, too
                    hook.interval = min(hook.interval, max(1, runner.max_iters // LOGGED))
        return runner


def build_train_runner(
    config: str,
    options: dict | None = None,
    work_dir: str | None = None,
    launcher: str = "none",
    resume: bool = False,
    amp: bool = False,
    auto_scale_lr: bool = False,
    iterations: int | None = None,
    size: int | None = None,
) -> Runner:
    """Build the Runner that trains a config; see `mmseg_ext.train` for the arguments.

    Raises:
        LaunchError: if the run cannot start.
    """
    settings = (config, options, work_dir, launcher, amp, auto_scale_lr, iterations, size)
    return Training(*settings).build(resume)


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
    """Build the Runner that tests a checkpoint; see `load_config` for the arguments.

    Args:
        out: folder for the predicted label maps.
        show_dir: folder for the painted images.
        show_seconds: show each painted image on the screen for this time.

    Raises:
        LaunchError: if the run cannot start.
    """
    cfg = load_config(config, options, work_dir, launcher)
    if "://" not in checkpoint and not Path(checkpoint).is_file():
        hint = hashed_name_hint(Path(checkpoint)) or "; check the path"
        raise LaunchError(f"checkpoint: there is no file {checkpoint!r}{hint}")
    cfg.load_from, cfg.resume = checkpoint, False
    if show_dir or show_seconds is not None:
        _draw_predictions(cfg, show_dir, show_seconds)
    if tta:
        if "tta_pipeline" not in cfg:
            raise LaunchError("--tta: the config has no tta_pipeline; add it")
        for dataset in inner_datasets(cfg.test_dataloader.dataset):
            dataset.pipeline = cfg.tta_pipeline
        cfg.model = {**merging_model(cfg), "module": cfg.model}
    if out is not None:
        # On every rank: the metric creates it on rank 0, maybe after another rank's file.
        Path(out).mkdir(parents=True, exist_ok=True)
        writers = []
        for metric in as_list(cfg.test_evaluator):
            kind = class_named(metric.get("type"))
            if kind is None or "output_dir" in arguments(kind):  # None has an error of its own
                writers.append(metric)
        if not writers:
            raise LaunchError("--out: no metric of test_evaluator writes label maps; add IoUMetric")
        for metric in writers:
            metric.update(output_dir=out, keep_results=True)
    init_distributed(cfg)
    runner = _build(cfg, trains=False)
    warning = unseen_views(cfg) if tta else ""
    if warning:
        runner.logger.warning(warning)
    return runner


def build_segmentor(cfg: Config) -> Any:
    """Build a config's segmentor, with plain instead of synchronized batch norms.

    Raises:
        LaunchError: if the model cannot be built, or is not a segmentor.
    """
    from mmseg.models import BaseSegmentor  # detectors train without mmsegmentation
    from mmseg.registry import MODELS

    init_default_scope(cfg.get("default_scope", "mmseg"))
    with safely(cfg):
        model: Any = MODELS.build(cfg.model)
    if not isinstance(model, BaseSegmentor):
        package = type(model).__module__.partition(".")[0]
        raise LaunchError(
            f"{cfg.filename}: {type(model).__name__} is not a segmentor, and this works only for "
            f"segmentors; use the tools of {package}"
        )
    return revert_sync_batchnorm(model)


def _build(cfg: Config, trains: bool) -> Runner:
    """Build the Runner with its loops, for a training or a test, and their datasets."""
    prepare_for_gpu(cfg)
    process_state = OwnProcessStateHook(cfg)
    with safely(cfg):
        if "runner_type" in cfg:
            runner = RUNNERS.build(cast(dict, cfg))
        else:
            runner = (_QuietRunner if trains else _QuietTestRunner).from_cfg(cfg)
        for loop in ("train_loop", "val_loop") if trains else ("test_loop",):
            getattr(runner, loop)
    model = unwrap_model(runner.model)
    if hasattr(model, "encode_decode"):  # other models need no mmsegmentation
        from mmseg_ext.segmentors import StripEncoderDecoder
        from mmseg_ext.segmentors.mixed_sizes import predict_mixed_sizes
        from mmseg_ext.segmentors.unlabeled_images import mask_unlabeled

        predict_mixed_sizes(model)
        if not isinstance(model, StripEncoderDecoder):  # whose constructor does it
            mask_unlabeled(model)
    if not any(isinstance(hook, LeverHook) for hook in runner.hooks):  # of another class
        runner.register_hook(LeverHook())
    # Configs of others do not name the hooks whose files the report shows.
    for name, kind in (("run_record", RunRecordHook), ("run_results", RunResultsHook)):
        if name not in (cfg.get("default_hooks") or {}):
            runner.register_hook(kind())
    check_run(runner, trains)
    if trains:
        fit_learning_rate(runner)
    process_state.complete(runner)
    return runner


def decide_resuming(cfg: Config, resume: bool, options: dict) -> None:
    """Set `cfg.resume`, and remove `cfg.load_from` if the run resumes from its work directory.

    It starts the process group, in which all processes decide the same. A restarted run prefers its
    work directory. Otherwise `load_from` on the command line comes first. Rank 0 looks for
    checkpoints, because file systems can differ or lag between machines.
    """
    init_distributed(cfg)
    key = cfg.get("resume", False)
    if isinstance(key, str):
        raise LaunchError(f"resume={key!r}: set resume=True load_from={key!r}")
    # As in mmengine, a file with resume=True resumes from its `load_from`.
    named_in_file = bool(key and cfg.get("load_from")) and "resume" not in options
    named_by_option = "load_from" in options
    starts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    prefers_own = any(int(os.environ.get(name) or 0) > 0 for name in starts)
    asks_for_own = resume or (key and not named_in_file)
    if asks_for_own and not named_by_option:
        prefers_own = True
    resume = resume or key

    def has_own() -> bool:
        own, _ = find_checkpoints(cfg)
        return bool(own or (resume and missing_checkpoint(cfg)))

    if on_rank_zero(lambda: prefers_own and has_own()):
        cfg.load_from = None
        cfg.resume = True
    else:
        # Without the option, a config's `load_from` starts a new run.
        is_new = cfg.get("load_from") and not (named_by_option or named_in_file)
        cfg.resume = resume and not is_new


def _draw_predictions(cfg: Config, show_dir: str | None, seconds: float | None) -> None:
    hook = cfg.get("default_hooks", {}).get("visualization")
    if hook is None:
        raise LaunchError(
            "--show, --show-dir: the config has no default_hooks.visualization; add it"
        )
    channels = input_channels(cfg.model)
    if channels not in (1, 3):
        raise LaunchError(
            f"--show, --show-dir: mmsegmentation draws no images of {channels} bands; use "
            "mmseg-ext image_demo"
        )
    hook.update(draw=True)
    if seconds is not None:
        hook.update(show=True, wait_time=seconds)
    if show_dir:
        cfg.visualizer["save_dir"] = show_dir
