"""Unpack, place and verify ADEChallengeData2016, ADE20K's 150 classes."""

from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands._convert_dataset import converter_parser, run
from mmseg_ext.datasets.converters.ade20k import NAME, convert_ade20k

WHERE = """\
The data; nothing is downloaded:

  ADEChallengeData2016.zip (923 MB)
      http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip

    python tools/dataset_converters/ade20k.py ADEChallengeData2016.zip

The full ADE20K release (ADE20K_2016_07_26, ADE20K_2021_17_01) is another dataset and is refused.
A folder that is unpacked already is verified where it is and linked to. A run that was cut off is
completed by the next one; what is there already is verified, and not written again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = converter_parser(__doc__, WHERE)
    parser.add_argument("source", type=Path, help=f"{NAME}.zip or the folder that it unpacks to")
    parser.add_argument(
        "destination",
        type=Path,
        nargs="?",
        default=Path("data/ade", NAME),
        help="where the configs look for it (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    return run(
        lambda: convert_ade20k(args.source, args.destination, args.nproc, args.allow_partial),
        args.destination,
    )
