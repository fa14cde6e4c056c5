"""Count parameters and multiply-adds of configs."""

import argparse
from pathlib import Path

from mmseg_ext.commands import command, command_parser, config_flag


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("configs", nargs="+", type=Path)
    config_flag(parser)
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmengine.logging import MMLogger

    from mmseg_ext.cost.model_cost import HEADINGS, cells, count_config, markdown

    MMLogger.get_current_instance().setLevel("WARNING")  # a line for each parameter
    rows = [cells(path.stem, count_config(path, args.cfg_options)) for path in args.configs]
    print(markdown(HEADINGS, rows), end="")
