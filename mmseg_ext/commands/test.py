"""Test a segmentor: mmsegmentation's flags."""

import argparse
from collections.abc import Sequence

from mmengine.runner import Runner

from mmseg_ext.checkpoint.loading import SafeLoading, require_coverage
from mmseg_ext.commands._flags import test as parser
from mmseg_ext.commands._launch import exit_on_run_error, parsed
from mmseg_ext.engine.build_errors import explained
from mmseg_ext.engine.launch import build_test_runner


def runner_of(args: argparse.Namespace) -> Runner:
    return build_test_runner(
        args.config,
        args.checkpoint,
        args.cfg_options,
        args.work_dir,
        args.launcher,
        args.tta,
        args.out,
        args.show_dir,
        args.wait_time if args.show else None,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Test, with weights that fill all that testing uses."""
    args = parsed(parser(), argv)
    with exit_on_run_error(), SafeLoading(), require_coverage(whole=True):
        runner = runner_of(args)
        with explained(runner.cfg):
            runner.test()
    return 0
