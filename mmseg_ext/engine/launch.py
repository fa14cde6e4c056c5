"""What `tools/train.py` and `tools/test.py` do: mmsegmentation's flags, made into a Runner.

The flags and their meaning are mmsegmentation's (1.2.2 and 1.4.2). Differences, each deliberate:

- `--auto-scale-lr` is added, as mmdetection has it; without it a batch other than the one that
  the learning rate is meant for is a warning. The batch counts gradient accumulation.
- `--amp` runs on the CPU too, in bfloat16.
- A run that torchrun or Slurm starts again resumes by itself.
- `--resume` never takes `load_from` of a config for a run to resume: a fine-tuning config
  resumes its own work directory. `--cfg-options load_from=FILE` beside `--resume` still does.
- `--tta` takes `StreamingSegTTAModel` where a config names no `tta_model`.
- A run that cannot start ends with one message and exit status 1; a wrong flag with status 2.
"""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmseg_ext.checkpoint.errors import CheckpointError
from mmseg_ext.checkpoint.writing import candidates
from mmseg_ext.datasets.checked_dataset import MissingDataError
from mmseg_ext.datasets.files import UnreadableFileError
from mmseg_ext.datasets.labels import LabelError
from mmseg_ext.datasets.metainfo import tell_class_counts
from mmseg_ext.engine.config_check import check_config, check_options
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.engine.distributed import init_distributed
from mmseg_ext.engine.launch_error import LaunchError
from mmseg_ext.engine.pretrained import is_address, require_weights
from mmseg_ext.engine.run_error import RunError

# A disk that is full, over its quota, broken or read-only.
_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.ENOTDIR,
)


def _common_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=ConfigOptions,
        metavar="KEY=VALUE",
        help="override settings of the config, e.g. train_cfg.max_iters=100 "
        'model.backbone.init_cfg=None key="[(a,b),(c,d)]" (no white space within a value)',
    )
    parser.add_argument(
        "--launcher",
        choices=["none", "pytorch", "slurm", "mpi"],
        default="none",
        help="how several processes are started",
    )
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)


def train_parser() -> argparse.ArgumentParser:
    """The flags of `tools/train.py`."""
    parser = argparse.ArgumentParser(prog="train.py", description="Train a segmentor")
    parser.add_argument("config", help="path of the config")
    parser.add_argument("--work-dir", help="where logs and checkpoints go")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the latest checkpoint in the work directory, where there is one",
    )
    parser.add_argument("--amp", action="store_true", help="automatic mixed precision")
    parser.add_argument(
        "--auto-scale-lr",
        action="store_true",
        help="multiply the learning rate by the effective batch over "
        "auto_scale_lr.base_batch_size of the config",
    )
    _common_flags(parser)
    return parser


def test_parser() -> argparse.ArgumentParser:
    """The flags of `tools/test.py`."""
    parser = argparse.ArgumentParser(prog="test.py", description="Test (and evaluate) a segmentor")
    parser.add_argument("config", help="path of the config")
    parser.add_argument("checkpoint", help="checkpoint file")
    parser.add_argument("--work-dir", help="where the metrics go, as JSON")
    parser.add_argument("--out", help="where predictions go, for evaluation elsewhere")
    parser.add_argument("--show", action="store_true", help="show predictions on the screen")
    parser.add_argument("--show-dir", help="where painted images go")
    parser.add_argument("--wait-time", type=float, default=2, help="seconds between shown images")
    parser.add_argument("--tta", action="store_true", help="test-time augmentation")
    _common_flags(parser)
    return parser


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
        raise LaunchError(f"config {path}: {_one_line(error)}") from error
    cfg.launcher = launcher
    if options:
        check_options(cfg, options)
        try:
            cfg.merge_from_dict(options)
        except (KeyError, IndexError, TypeError, AssertionError) as error:
            raise LaunchError(f"--cfg-options {options}: {_one_line(error)}") from error
    tell_class_counts(cfg)
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


def _one_line(error: Exception) -> str:
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
    own = (restarted or (resume and not named)) and bool(candidates(cfg.work_dir))
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


def scale_learning_rate(runner: Runner, enable: bool) -> None:
    """Apply `auto_scale_lr` of the config and print it, or warn of a batch that does not fit.

    The rule is linear (arXiv:1706.02677). mmengine multiplies the rate of every parameter group
    by processes x batch / base_batch_size; accumulated gradients enter through the base.

    Raises:
        LaunchError: if `enable` and the config has no `auto_scale_lr.base_batch_size`.
    """
    base = base_batch(runner.cfg, enable)
    if base is None:
        return
    effective = effective_batch(runner)
    factor = effective / base
    what = f"configured batch {base}, effective batch {effective}"
    if enable or runner.cfg.auto_scale_lr.get("enable", False):
        accumulated = runner.cfg.optim_wrapper.get("accumulative_counts", 1)
        runner.auto_scale_lr = {"enable": True, "base_batch_size": base / accumulated}
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


def build_train_runner(args: argparse.Namespace) -> Runner:
    """The Runner that `tools/train.py` trains, from the flags of `train_parser`.

    Raises:
        LaunchError: for whatever keeps the run from starting.
    """
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    if args.amp:
        enable_amp(cfg)
    check_config(cfg, "train")
    _set_resume(cfg, args.resume, args.cfg_options)
    require_weights(cfg)
    init_distributed(cfg)
    runner = _build_runner(cfg)
    scale_learning_rate(runner, args.auto_scale_lr)
    _build_loop(runner, "train_loop")
    return runner


def _draw_predictions(cfg: Config, args: argparse.Namespace) -> None:
    hook = cfg.get("default_hooks", {}).get("visualization")
    if hook is None:
        raise LaunchError("--show and --show-dir need default_hooks.visualization in the config")
    hook["draw"] = True
    if args.show:
        hook["show"] = True
        hook["wait_time"] = args.wait_time
    if args.show_dir:
        cfg.visualizer["save_dir"] = args.show_dir


def _enable_tta(cfg: Config) -> None:
    if "tta_pipeline" not in cfg:
        raise LaunchError("--tta: the config has no tta_pipeline")
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    tta = cfg.get("tta_model") or {"type": "StreamingSegTTAModel"}
    tta["module"] = cfg.model
    cfg.model = tta


def build_test_runner(args: argparse.Namespace) -> Runner:
    """The Runner that `tools/test.py` tests with, from the flags of `test_parser`.

    Raises:
        LaunchError: for whatever keeps the run from starting.
    """
    if not is_address(args.checkpoint) and not Path(args.checkpoint).is_file():
        raise LaunchError(f"checkpoint: there is no file {args.checkpoint!r}")
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    cfg.load_from = args.checkpoint
    cfg.resume = False
    if args.show or args.show_dir:
        _draw_predictions(cfg, args)
    if args.tta:
        _enable_tta(cfg)
    if args.out is not None:
        cfg.test_evaluator["output_dir"] = args.out
        cfg.test_evaluator["keep_results"] = True
    check_config(cfg, "test")
    init_distributed(cfg)
    runner = _build_runner(cfg)
    _build_loop(runner, "test_loop")
    return runner


@contextmanager
def one_message():
    """What keeps a run from starting or going on ends the process with one message.

    What is the same in all processes is printed by one per machine.
    """
    try:
        yield
    except (LaunchError, CheckpointError) as error:
        first = int(os.environ.get("LOCAL_RANK", 0)) == 0
        sys.exit(f"mmseg_ext: {error}" if first else 1)
    except RunError as error:  # of this process alone
        sys.exit(f"mmseg_ext: {error}")
    except MissingDataError as error:  # its layout takes several lines
        sys.exit(f"mmseg_ext: data: {error}")
    except (LabelError, UnreadableFileError) as error:
        # A loader's process hands on its trace, which ends in "module.LabelError: <message>".
        line = str(error).strip().splitlines()[-1]
        line = line.removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")
        sys.exit(f"mmseg_ext: data: {line}")
    except OSError as error:
        if error.errno not in _DISK:
            raise
        sys.exit(
            f"mmseg_ext: {error.filename or 'a file of the run'}: {error.strerror}; the "
            "checkpoints written before are untouched, --resume goes on from the last of them"
        )
    finally:
        if torch.distributed.is_initialized():
            _leave_process_group()


def _leave_process_group() -> None:
    """Destroy the group and end gloo's threads while there is an interpreter.

    One of them that releases a tensor after the interpreter's end aborts the process, and a
    finished run would exit with a failure. The wrapped model holds the group in reference cycles,
    hence the collection; and the last reference is Python's own, which lets the threads have the
    interpreter's lock while they are waited for.
    """
    group = torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    gc.collect()
    del group


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    args = parser.parse_args(argv)
    if args.launcher == "slurm":  # its own names, until mmengine has started the process group
        for name, given in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")):
            if given in os.environ:
                os.environ.setdefault(name, os.environ[given])
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return args


def train(argv: Sequence[str] | None = None) -> None:
    """`tools/train.py`: `argv` is the command line, by default the process's."""
    args = _parse(train_parser(), argv)
    with one_message():
        build_train_runner(args).train()


def test(argv: Sequence[str] | None = None) -> None:
    """`tools/test.py`: `argv` is the command line, by default the process's."""
    args = _parse(test_parser(), argv)
    with one_message():
        build_test_runner(args).test()
