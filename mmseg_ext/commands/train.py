"""Train a segmentor: mmsegmentation's flags, and --auto-scale-lr."""

import argparse
from collections.abc import Sequence

from mmengine.runner import Runner

from mmseg_ext.checkpoint.loading import SafeLoading, require_coverage
from mmseg_ext.commands._flags import train as parser
from mmseg_ext.commands._launch import exit_on_run_error, parsed
from mmseg_ext.engine.build_errors import explained
from mmseg_ext.engine.launch import build_train_runner


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
    with exit_on_run_error(), SafeLoading():
        runner = runner_of(args)
        with explained(runner.cfg), require_coverage(runner.cfg.get("min_backbone_share")):
            runner.train()
    return 0
