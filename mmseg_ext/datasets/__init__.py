"""Datasets and transforms, registered by importing this package.

Without mmsegmentation only `CheckedLoadImage` is available.
"""

from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.environment import stack_problem

__all__ = ["CheckedLoadImage"]

if stack_problem() is None:
    from mmseg_ext.datasets.checked_dataset import (
        CamVidDataset,
        CheckedADE20KDataset,
        CheckedCityscapesDataset,
        CheckedDataset,
        CheckedPascalVOCDataset,
    )
    from mmseg_ext.datasets.fast_transforms import LabeledRandomCrop
    from mmseg_ext.datasets.label_loading import CheckedLoadAnnotations
    from mmseg_ext.datasets.nuclei import NucleiDataset
    from mmseg_ext.datasets.published_voc import PadToRemainder, RandomRatioScale
    from mmseg_ext.datasets.shapes import ShapesDataset

    __all__ += [
        "CamVidDataset",
        "CheckedADE20KDataset",
        "CheckedCityscapesDataset",
        "CheckedDataset",
        "CheckedLoadAnnotations",
        "CheckedPascalVOCDataset",
        "LabeledRandomCrop",
        "NucleiDataset",
        "PadToRemainder",
        "RandomRatioScale",
        "ShapesDataset",
    ]
