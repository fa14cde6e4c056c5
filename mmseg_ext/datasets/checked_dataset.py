"""mmsegmentation's datasets, telling where their files are expected and how many classes they have.

A dataset whose folders are missing or empty fails with the layout that it expects and the command
that makes it, instead of an assertion or an index error from deeper down; each sample carries the
number of classes, by which `CheckedLoadAnnotations` refuses label maps that do not fit.
"""

import os

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmseg.datasets import ADE20KDataset, BaseSegDataset, CityscapesDataset, PascalVOCDataset
from mmseg.registry import DATASETS

from mmseg_ext.datasets.files import as_stored, decode, read_bytes
from mmseg_ext.datasets.labels import LabelRule, decode_label, histogram, refuse_binary
from mmseg_ext.errors import LabelError, MissingDataError, UnreadableFileError

_LOOKED_AT = 16  # label maps that are read at the start, evenly spaced


@DATASETS.register_module()
class CheckedDataset(BaseSegDataset):
    """A dataset of image and label files that checks its folders first.

    Arguments are those of mmseg's `BaseSegDataset`. `LAYOUT` lists the files below `data_root`
    and `PREPARATION` says where they come from; a subclass sets both.

    Raises:
        MissingDataError: if a folder or the list of names is missing, or no image is in it.
        LabelError: for 1 class or more than 255, and for masks of 0 and 255 alone.
        UnreadableFileError: for a list that is no UTF-8 text; on access to a sample whose image
            does not decode. Test pipelines start with the stock `LoadImageFromFile`, for which
            mmsegmentation's inferencer looks by name, and which does not always name the file.

    That loader reads labelled images as they are stored here, without turning them by their EXIF
    orientation, as `CheckedLoadImage` does.
    """

    LAYOUT: str = ""
    PREPARATION: str = ""

    def full_init(self) -> None:
        super().full_init()
        for transform in self.pipeline.transforms:
            if isinstance(transform, LoadImageFromFile) and self._has_labels:
                transform.color_type = as_stored(transform.color_type)

    @property
    def _has_labels(self) -> bool:
        return len(self) > 0 and bool(self.get_data_info(0).get("seg_map_path"))

    def load_data_list(self) -> list[dict]:
        for path in filter(None, (self.ann_file, *self.data_prefix.values())):
            if not fileio.exists(path, self.backend_args):
                raise MissingDataError(self._missing(f"{path} is not there"))
        if self.ann_file:
            require_utf8(self.ann_file, self.backend_args)
        entries = super().load_data_list()
        if not entries:
            where = self.ann_file or f"{self.data_prefix['img_path']}, *{self.img_suffix}"
            raise MissingDataError(self._missing(f"{where}: no image"))
        num_classes = len(self._metainfo.get("classes") or ()) or None
        for entry in entries:
            entry["num_classes"] = num_classes
            entry["ignore_index"] = self.ignore_index
        if num_classes and "seg_map_path" in entries[0]:
            rule = LabelRule.from_data_info(entries[0], num_classes)
            self._refuse_binary(entries, rule)
        return entries

    def _refuse_binary(self, entries: list[dict], rule: LabelRule) -> None:
        """Look at a few label maps; one that cannot be read is told of where it is loaded."""
        counts = np.zeros(256, int)
        positions = np.linspace(0, len(entries) - 1, min(_LOOKED_AT, len(entries))).astype(int)
        for i in positions:
            path = entries[i]["seg_map_path"]
            try:
                label = decode_label(read_bytes(path, self.backend_args), path)
            except (LabelError, UnreadableFileError):
                continue
            counts += histogram(label)
            if counts[1:255].any():  # the usual case: the first label map shows it
                return
        refuse_binary(counts, rule.num_classes, entries[0]["seg_map_path"], rule)

    def get_cat_ids(self, idx: int) -> list[int]:
        """Classes that a sample's label map shows, as mmengine's `ClassBalancedDataset` asks."""
        if not hasattr(self, "_cat_ids"):
            self._cat_ids: dict[int, list[int]] = {}  # asked for twice
        if idx not in self._cat_ids:
            info = self.get_data_info(idx)
            path = info["seg_map_path"]
            rule = LabelRule.from_data_info(info, info["num_classes"])
            label = rule.apply(decode_label(read_bytes(path, self.backend_args), path), path)
            self._cat_ids[idx] = np.flatnonzero(histogram(label)[: rule.num_classes]).tolist()
        return self._cat_ids[idx]

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


def require_utf8(path: str, backend_args: dict | None = None) -> None:
    """The list of names at `path` is UTF-8 text without a byte order mark.

    Raises:
        UnreadableFileError: if not; Windows' editors write UTF-16 or a mark.
    """
    data = read_bytes(path, backend_args)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or text.startswith("\ufeff"):
        raise UnreadableFileError(
            f"{path}: is no plain UTF-8 text (UTF-16, or a byte order mark?): write it again, as "
            "by iconv -f UTF-16 -t UTF-8"
        )


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
