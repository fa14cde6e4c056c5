"""Print the folder of the configs, for `$(mmseg-ext where)/ea_r18_shapes.py`."""

import argparse
from collections.abc import Sequence

from mmseg_ext.environment import configs_folder


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    print(configs_folder())
    return 0
