"""mmsegmentation's datasets, telling where their files are expected and how many classes they have.

A dataset whose folders are missing or empty fails with the layout that it expects and the command
that makes it, instead of an assertion or an index error from deeper down; each sample carries the
number of classes, by which `CheckedLoadAnnotations` refuses label maps that do not fit.
"""

import os

from mmengine import fileio
from mmseg.datasets import ADE20KDataset, BaseSegDataset, CityscapesDataset, PascalVOCDataset
from mmseg.registry import DATASETS

from mmseg_ext.datasets.files import UnreadableFileError, decode, read_bytes
from mmseg_ext.datasets.labels import LabelError


class MissingDataError(FileNotFoundError):
    """Data that is not where a config says; the message holds the layout and the command."""


@DATASETS.register_module()
class CheckedDataset(BaseSegDataset):
    """A dataset of image and label files that checks its folders first.

    Arguments are those of mmseg's `BaseSegDataset`. `LAYOUT` lists the files below `data_root`
    and `PREPARATION` says where they come from; a subclass sets both.

    Raises:
        MissingDataError: if a folder or the list of names is missing, or no image is in it.
        UnreadableFileError: on access to a sample whose image does not decode. Test pipelines
            start with the stock `LoadImageFromFile`, for which mmsegmentation's inferencer looks
            by name, and which does not always name the file.
    """

    LAYOUT: str = ""
    PREPARATION: str = ""

    def load_data_list(self) -> list[dict]:
        for path in filter(None, (self.ann_file, *self.data_prefix.values())):
            if not fileio.exists(path, self.backend_args):
                raise MissingDataError(self._missing(f"{path} is not there"))
        entries = super().load_data_list()
        if not entries:
            where = self.ann_file or f"{self.data_prefix['img_path']}, *{self.img_suffix}"
            raise MissingDataError(self._missing(f"{where}: no image"))
        num_classes = len(self._metainfo.get("classes") or ()) or None
        for entry in entries:
            entry["num_classes"] = num_classes
            entry["ignore_index"] = self.ignore_index
        return entries

    def prepare_data(self, idx: int) -> dict | None:
        try:
            return super().prepare_data(idx)
        except (UnreadableFileError, LabelError):
            raise
        except Exception:  # whatever it is: where the file is its reason, say so by name
            path = self.get_data_info(idx)["img_path"]
            decode(read_bytes(path, self.backend_args), path, "color", "cv2")
            raise

    def _missing(self, problem: str) -> str:
        lines = [f"{problem}."]
        if self.LAYOUT:
            root = self.data_root or "data_root"
            where = root if os.path.isabs(root) else f"{root} (here {os.path.abspath(root)})"
            lines += [f"{type(self).__name__} expects below {where}"]
            lines += ["", *(f"    {line}" for line in self.LAYOUT.strip().splitlines()), ""]
        if self.PREPARATION:
            lines += [self.PREPARATION.strip()]
        return "\n".join(lines)


@DATASETS.register_module()
class CheckedPascalVOCDataset(CheckedDataset, PascalVOCDataset):
    """PASCAL VOC 2012: 1,464 training, 1,449 validation and 10,582 augmented training images."""

    LAYOUT = """
JPEGImages/*.jpg
SegmentationClass/*.png                         label maps of VOC
SegmentationClassAug/*.png                      label maps of trainaug
ImageSets/Segmentation/{train,val,trainval}.txt
ImageSets/Segmentation/{trainaug,aug}.txt       10,582 and 9,118 names
ImageSets/Segmentation/test.txt                 of the test archive, without labels
"""
    PREPARATION = """
VOCtrainval_11-May-2012.tar unpacks to VOCdevkit/VOC2012; the augmented part is made from SBD's
benchmark.tgz by

    python tools/dataset_converters/voc_aug.py data/VOCdevkit path/to/benchmark_RELEASE

The 1,456 test images and test.txt are in VOC2012test.tar of the evaluation server, unpacked to the
same folder.
"""


@DATASETS.register_module()
class CheckedADE20KDataset(CheckedDataset, ADE20KDataset):
    """ADE20K of the scene parsing challenge: 20,210 training and 2,000 validation images."""

    LAYOUT = """
images/training/*.jpg            20,210
images/validation/*.jpg          2,000
annotations/training/*.png       0 ignored, 1 to 150 the classes
annotations/validation/*.png
"""
    PREPARATION = """
ADEChallengeData2016.zip (not the full ADE20K release) is unpacked and verified by

    python tools/dataset_converters/ade20k.py ADEChallengeData2016.zip
"""


@DATASETS.register_module()
class CheckedCityscapesDataset(CheckedDataset, CityscapesDataset):
    """Cityscapes, fine annotations: 2,975 training, 500 validation and 1,525 test images."""

    LAYOUT = """
leftImg8bit/{train,val,test}/<city>/*_leftImg8bit.png
gtFine/{train,val,test}/<city>/*_gtFine_labelTrainIds.png    made by the converter
"""
    PREPARATION = """
leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip unpack to this layout; the label maps of
the 19 classes are made by

    python tools/dataset_converters/cityscapes.py data/cityscapes
"""
