"""Test a segmentor: mmsegmentation's flags."""

import argparse
from typing import Any

from mmseg_ext.commands import clean_end, command, command_parser, launcher_flags


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("config", help="name or path of the config")
    parser.add_argument("checkpoint", help="checkpoint file")
    parser.add_argument("--work-dir", help="folder for the metrics, as JSON")
    parser.add_argument("--out", help="folder for predicted label maps, for evaluation elsewhere")
    parser.add_argument("--show", action="store_true", help="show predictions on the screen")
    parser.add_argument("--show-dir", help="folder for painted images")
    parser.add_argument("--wait-time", type=float, default=2, help="seconds between shown images")
    parser.add_argument("--tta", action="store_true", help="test-time augmentation")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    launcher_flags(parser)
    return parser


def runner_of(args: argparse.Namespace):
    """Build the Runner for parsed flags."""
    from mmseg_ext.engine.build import build_test_runner

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


@command(parser)
def main(args: argparse.Namespace) -> None:
    """Test with weights that fill the complete model, except for auxiliary heads."""
    from mmseg_ext.checkpoint.safe_loading import safe_loading
    from mmseg_ext.cost.model_cost import write_cost
    from mmseg_ext.engine.amp import bfloat16_autocast
    from mmseg_ext.engine.build_errors import explained
    from mmseg_ext.terminal import logged_warnings

    with clean_end(), logged_warnings(), safe_loading(entire_model=True):
        runner = runner_of(args)
        autocast = bfloat16_autocast(next(runner.model.parameters()).device, args.amp)
        loop: Any = runner.test_loop
        loop.fp16 |= args.amp  # else the loop disables autocast
        with explained(runner.cfg), autocast:
            runner.test()
        write_cost(runner)
