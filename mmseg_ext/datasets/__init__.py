"""Datasets and transforms; importing this package registers them with mmseg."""

from mmseg_ext.datasets.camvid import CamVidDataset
from mmseg_ext.datasets.checked_dataset import (
    CheckedADE20KDataset,
    CheckedCityscapesDataset,
    CheckedDataset,
    CheckedPascalVOCDataset,
)
from mmseg_ext.datasets.checked_loading import CheckedLoadAnnotations, CheckedLoadImage
from mmseg_ext.datasets.published_voc import PadToRemainder, RandomRatioScale
from mmseg_ext.datasets.shapes import ShapesDataset
from mmseg_ext.evaluation.checked_iou_metric import CheckedIoUMetric

__all__ = [
    "CamVidDataset",
    "CheckedADE20KDataset",
    "CheckedCityscapesDataset",
    "CheckedDataset",
    "CheckedIoUMetric",
    "CheckedLoadAnnotations",
    "CheckedLoadImage",
    "CheckedPascalVOCDataset",
    "PadToRemainder",
    "RandomRatioScale",
    "ShapesDataset",
]
