"""Print the folder of the configs; use it as `$(mmseg-ext where)/ea_r18_shapes.py`."""

import argparse
from collections.abc import Sequence

from mmseg_ext.commands._flags import command_parser


def parser() -> argparse.ArgumentParser:
    return command_parser(__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    parser().parse_args(argv)
    from mmseg_ext.paths import configs_folder

    print(configs_folder())
    return 0
