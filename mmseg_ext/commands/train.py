"""Train a segmentor: mmsegmentation's flags, and --auto-scale-lr."""

import argparse
from collections.abc import Sequence

from mmengine.runner import Runner

from mmseg_ext.checkpoint.loading import SafeLoading, require_coverage
from mmseg_ext.commands._launch import common_flags, one_message, parsed
from mmseg_ext.engine.config_check import explained
from mmseg_ext.engine.launch import build_train_runner


def parser() -> argparse.ArgumentParser:
    """The flags, which `print_config` has too."""
    flags = argparse.ArgumentParser(prog="train.py", description="Train a segmentor")
    flags.add_argument("config", help="path of the config")
    flags.add_argument("--work-dir", help="where logs and checkpoints go")
    flags.add_argument(
        "--resume",
        action="store_true",
        help="go on from the latest checkpoint in the work directory, where there is one",
    )
    flags.add_argument("--amp", action="store_true", help="automatic mixed precision")
    flags.add_argument(
        "--auto-scale-lr",
        action="store_true",
        help="multiply the learning rate by the effective batch over "
        "auto_scale_lr.base_batch_size of the config",
    )
    common_flags(flags)
    return flags


def runner_of(args: argparse.Namespace) -> Runner:
    return build_train_runner(
        args.config,
        args.cfg_options,
        args.work_dir,
        args.launcher,
        args.resume,
        args.amp,
        args.auto_scale_lr,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Train; 0 where the run ended as it should, also when a signal stopped it."""
    args = parsed(parser(), argv)
    with one_message(), SafeLoading():
        runner = runner_of(args)
        with explained(runner.cfg), require_coverage(runner.cfg.get("min_backbone_share")):
            runner.train()
    return 0
