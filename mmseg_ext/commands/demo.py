"""Train EANet on the embedded dataset, test it and draw its predictions (`make demo`)."""

import argparse
from pathlib import Path

from mmseg_ext.commands._flags import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo"))
    parser.add_argument("--data-root", help="folder of the dataset (default: data/shapes)")
    parser.add_argument("--compare", action="store_true", help="also train FCN and DANet")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int | None:
    from mmseg_ext.commands._demos import compare_heads, data_root_options, segmentation_demo

    options = data_root_options(args.data_root) if args.data_root else None
    if args.compare:
        return compare_heads(args.work_dir, options)
    return int(not segmentation_demo(args.work_dir, options))
