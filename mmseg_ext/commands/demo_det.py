"""Train a small Mask R-CNN with RMT on the embedded scenes, draw detections (`make demo-det`)."""

import argparse
from pathlib import Path

from mmseg_ext.commands._flags import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo_det"))
    parser.add_argument("--data-root", type=Path, default=Path("data/shapes"))
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    from mmseg_ext.commands import exit_on_run_error
    from mmseg_ext.commands._demos import detection_demo

    with exit_on_run_error():
        return int(not detection_demo(args.work_dir, args.data_root, args.resume))
