"""Make the label maps of the 19 classes of Cityscapes."""

from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands._convert_dataset import converter_parser, run
from mmseg_ext.datasets.converters.cityscapes import convert_cityscapes

WHERE = """\
The data, after registration at https://www.cityscapes-dataset.com/downloads/; nothing is
downloaded:

  leftImg8bit_trainvaltest.zip (11 GB)    images
  gtFine_trainvaltest.zip (241 MB)        fine annotations; those of test are withheld

    unzip leftImg8bit_trainvaltest.zip -d data/cityscapes
    unzip gtFine_trainvaltest.zip -d data/cityscapes
    python tools/dataset_converters/cityscapes.py data/cityscapes

The label maps are drawn by cityscapesscripts where it is installed (pip install cityscapesscripts),
else taken from the archive's labelIds maps; the result is the same. A run that was cut off is
completed by the next one; what is there already is verified, and not written again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = converter_parser(__doc__, WHERE)
    parser.add_argument(
        "root",
        type=Path,
        nargs="?",
        default=Path("data/cityscapes"),
        help="folder with leftImg8bit and gtFine (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    return run(lambda: convert_cityscapes(args.root, args.nproc, args.allow_partial), args.root)
