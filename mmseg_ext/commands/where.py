"""Print the folder of the configs, for `$(mmseg-ext where)/ea_r18_shapes.py`."""

from collections.abc import Sequence

from mmseg_ext.commands._flags import where as parser
from mmseg_ext.environment import configs_folder


def main(argv: Sequence[str] | None = None) -> int:
    parser().parse_args(argv)
    print(configs_folder())
    return 0
