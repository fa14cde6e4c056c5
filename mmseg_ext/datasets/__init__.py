"""Datasets and transforms; importing this package registers them with mmseg."""

from mmseg_ext.datasets.camvid import CamVidDataset
from mmseg_ext.datasets.published_voc import PadToRemainder, RandomRatioScale
from mmseg_ext.datasets.shapes import ShapesDataset

__all__ = ["CamVidDataset", "PadToRemainder", "RandomRatioScale", "ShapesDataset"]
