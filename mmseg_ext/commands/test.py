"""Test a segmentor: mmsegmentation's flags."""

import argparse
from collections.abc import Sequence

from mmengine.runner import Runner

from mmseg_ext.checkpoint.loading import SafeLoading, require_coverage
from mmseg_ext.commands._launch import common_flags, one_message, parsed
from mmseg_ext.engine.config_check import explained
from mmseg_ext.engine.launch import build_test_runner


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="test.py", description="Test (and evaluate) a segmentor")
    flags.add_argument("config", help="path of the config")
    flags.add_argument("checkpoint", help="checkpoint file")
    flags.add_argument("--work-dir", help="where the metrics go, as JSON")
    flags.add_argument("--out", help="where predictions go, for evaluation elsewhere")
    flags.add_argument("--show", action="store_true", help="show predictions on the screen")
    flags.add_argument("--show-dir", help="where painted images go")
    flags.add_argument("--wait-time", type=float, default=2, help="seconds between shown images")
    flags.add_argument("--tta", action="store_true", help="test-time augmentation")
    common_flags(flags)
    return flags


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
    with one_message(), SafeLoading(), require_coverage(whole=True):
        runner = runner_of(args)
        with explained(runner.cfg):
            runner.test()
    return 0
