"""What the published VOC pipeline does to an image and no transform of mmseg or mmcv does.

mmcv resizes without aligned corners and rounds sizes; it pads to a multiple and not to a remainder.

EANet (arXiv 2105.02358) was trained on VOC in EMANet's code (XiaLiPKU/EMANet, `dataset.py`), which
normalises the image and then resizes it and pads it with zeros. Both transforms here act before the
normalisation, on the image in its own value range. Resizing commutes with it, as bilinear weights
sum to one, and zero after it is the mean colour before it.
"""

from collections.abc import Sequence

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms.base import BaseTransform
from mmcv.transforms.utils import cache_randomness
from mmseg.registry import TRANSFORMS


@TRANSFORMS.register_module()
class RandomRatioScale(BaseTransform):
    """Resize image and label maps by a ratio drawn uniformly from `ratios` (published `scale`).

    Reads `img` (H, W, C) and the maps (H, W) named in `seg_fields`; writes them at
    (int(H r), int(W r)), the image in float32, bilinear with aligned corners, the maps by nearest
    neighbour, and sets `img_shape` (h, w), `scale` (w, h) and `scale_factor` (w, h).
    """

    def __init__(self, ratios: Sequence[float]):
        self.ratios = tuple(ratios)

    @cache_randomness
    def _draw(self) -> float:
        return float(np.random.choice(self.ratios))

    def transform(self, results: dict) -> dict:
        ratio = self._draw()
        image = torch.from_numpy(np.ascontiguousarray(results["img"]))  # a flip is a view
        image = image.float().permute(2, 0, 1)[None]  # (1, C, H, W)
        image = F.interpolate(image, scale_factor=ratio, mode="bilinear", align_corners=True)
        results["img"] = np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())  # (h, w, C)
        for key in results.get("seg_fields", ()):
            label = torch.from_numpy(np.ascontiguousarray(results[key]))[None, None]  # (1, 1, H, W)
            results[key] = F.interpolate(label, scale_factor=ratio, mode="nearest")[0, 0].numpy()
        results["img_shape"] = results["img"].shape[:2]
        results["scale"] = results["img_shape"][::-1]
        results["scale_factor"] = (ratio, ratio)
        return results

    def __repr__(self) -> str:
        return f"{type(self).__name__}(ratios={self.ratios})"


@TRANSFORMS.register_module()
class PadToRemainder(BaseTransform):
    """Pad bottom and right to the next size that leaves `remainder` modulo `divisor` (`pad_inf`).

    With aligned corners and output stride 8, a size of 1 modulo 8 puts the corners of the feature
    map on those of the image. Reads `img` (H, W, C), which becomes float32 filled with `pad_val`
    (one value per channel, in the image's own order), and nothing else: label maps that are loaded
    afterwards keep the original size. Sets `img_shape` and `pad_shape` (h, w) and
    `img_padding_size` (left, right, top, bottom), by which mmsegmentation cuts the logits; it has
    to be among the `meta_keys` of `PackSegInputs`.
    """

    def __init__(self, pad_val: Sequence[float], divisor: int = 8, remainder: int = 1):
        self.pad_val = tuple(pad_val)
        self.divisor = divisor
        self.remainder = remainder

    def transform(self, results: dict) -> dict:
        image = results["img"].astype(np.float32, copy=False)
        bottom, right = ((self.remainder - size) % self.divisor for size in image.shape[:2])
        image = cv2.copyMakeBorder(
            image, 0, bottom, 0, right, cv2.BORDER_CONSTANT, value=self.pad_val
        )
        results["img"] = image
        results["img_shape"] = results["pad_shape"] = image.shape[:2]
        results["img_padding_size"] = (0, right, 0, bottom)
        return results

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(pad_val={self.pad_val}, divisor={self.divisor}, "
            f"remainder={self.remainder})"
        )
