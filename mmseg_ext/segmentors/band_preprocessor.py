"""The data preprocessor for images of any number of bands."""

from collections.abc import Sequence
from typing import Any

import torch
from mmseg.models import SegDataPreProcessor
from mmseg.registry import MODELS


@MODELS.register_module()
class BandDataPreProcessor(SegDataPreProcessor):
    """mmsegmentation's `SegDataPreProcessor` with a mean and a deviation for each band.

    mmengine accepts one or three of them. The other arguments are the same; three bands are
    converted from BGR to RGB with `bgr_to_rgb`.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], **kwargs):
        one: Any = {"mean": [0.0], "std": [1.0]}  # replaced below
        super().__init__(**one, **kwargs)
        self.mean = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)  # (bands, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)  # (bands, 1, 1)
