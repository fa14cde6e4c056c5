"""Test a segmentor: mmsegmentation's flags."""

import argparse

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


def arguments(args: argparse.Namespace) -> dict:
    """Return the arguments of `mmseg_ext.test` for parsed flags."""
    given = vars(args).copy()
    given["options"] = given.pop("cfg_options")
    shows, seconds = given.pop("show"), given.pop("wait_time")
    given["show_seconds"] = seconds if shows else None
    given.pop("local_rank")  # torchrun's, which the environment has, too
    return given


@command(parser)
def main(args: argparse.Namespace) -> None:
    """Test; mmengine logs the scores."""
    from mmseg_ext.runs import test

    given = arguments(args)
    with clean_end():
        test(**given)
