"""Print the folder of the configs; use it as `$(mmseg-ext where)/ea_r18_shapes.py`."""

import argparse

from mmseg_ext.commands import command, command_parser


def parser() -> argparse.ArgumentParser:
    return command_parser(__doc__)


@command(parser, stack=False)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.environment import configs_folder

    print(configs_folder())
