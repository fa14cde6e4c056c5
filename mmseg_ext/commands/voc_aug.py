"""Make trainaug of PASCAL VOC 2012 from VOC and SBD."""

from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands._convert_dataset import converter_parser, run
from mmseg_ext.datasets.converters.voc_aug import convert_voc_aug

WHERE = """\
The data; nothing is downloaded:

  VOC 2012   http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar
             unpacks to VOCdevkit/VOC2012
  SBD        https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/
             semantic_contours/benchmark.tgz
             unpacks to benchmark_RELEASE/dataset/{cls,img,train.txt,val.txt}

    tar xf VOCtrainval_11-May-2012.tar -C data
    tar xf benchmark.tgz
    python tools/dataset_converters/voc_aug.py data/VOCdevkit benchmark_RELEASE

SBD's .mat files are read with SciPy (pip install scipy). A run that was cut off is completed by
the next one; what is there already is verified, and not written again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = converter_parser(__doc__, WHERE)
    parser.add_argument("devkit", type=Path, help="VOCdevkit, the folder with VOC2012")
    parser.add_argument("sbd", type=Path, help="benchmark_RELEASE, the folder with dataset/cls")
    args = parser.parse_args(argv)
    return run(
        lambda: convert_voc_aug(args.devkit, args.sbd, args.nproc, args.allow_partial),
        args.devkit / "VOC2012",
    )
