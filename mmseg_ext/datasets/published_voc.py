"""Two transforms of the published VOC pipeline that mmseg and mmcv lack.

mmcv resizes without aligned corners and rounds sizes. It pads to a multiple, not to a remainder.

EANet (arXiv 2105.02358) was trained on VOC in EMANet's code (XiaLiPKU/EMANet, `dataset.py`), which
normalizes the image, then resizes it and pads it with zeros. These transforms run before the
normalization. The result is equal: bilinear weights sum to one, so resizing commutes with
normalization, and a zero after it is the mean color before it.
"""

from collections.abc import Sequence

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms.base import BaseTransform
from mmseg.registry import TRANSFORMS


@TRANSFORMS.register_module()
class RandomRatioScale(BaseTransform):
    """Resize image and label maps by a ratio drawn uniformly from `ratios` (published `scale`).

    Resizes `img` (H, W, C) and the maps (H, W) named in `seg_fields` to (int(H r), int(W r)): the
    image in float32, bilinear with aligned corners, the maps to the nearest pixel. Sets `img_shape`
    (h, w), `scale` (w, h) and `scale_factor` (w, h).
    """

    def __init__(self, ratios: Sequence[float]):
        self.ratios = tuple(ratios)

    def transform(self, results: dict) -> dict:
        ratio = float(np.random.choice(self.ratios))
        image = torch.from_numpy(np.ascontiguousarray(results["img"]))  # a flip is a view
        image = image.float().permute(2, 0, 1)[None]  # (1, C, H, W)
        image = F.interpolate(image, scale_factor=ratio, mode="bilinear", align_corners=True)
        results["img"] = np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())  # (h, w, C)
        for key in results.get("seg_fields", ()):
            label = torch.from_numpy(results[key].astype(np.float32))[None, None]  # (1, 1, H, W)
            label = F.interpolate(label, scale_factor=ratio, mode="nearest")[0, 0].numpy()
            results[key] = label.astype(results[key].dtype)
        results["img_shape"] = results["img"].shape[:2]
        results["scale"] = results["img_shape"][::-1]
        results["scale_factor"] = (ratio, ratio)
        return results


@TRANSFORMS.register_module()
class PadToRemainder(BaseTransform):
    """Pad bottom and right to the next size that leaves `remainder` modulo `divisor` (`pad_inf`).

    With aligned corners and output stride 8, the corners of the feature map are the corners of the
    image if the size is 1 modulo 8. Pads only `img` (H, W, C), with `pad_val` (one value per
    channel, in the image's order), and converts it to float32. Label maps that are loaded later
    keep the original size. Sets `img_shape` and `pad_shape` (h, w) and `img_padding_size` (left,
    right, top, bottom). mmsegmentation crops the logits by `img_padding_size`, so it must be in
    the `meta_keys` of `PackSegInputs`.
    """

    def __init__(self, pad_val: Sequence[float], divisor: int = 8, remainder: int = 1):
        self.pad_val = tuple(pad_val)
        self.divisor, self.remainder = divisor, remainder

    def transform(self, results: dict) -> dict:
        image = results["img"].astype(np.float32, copy=False)
        height, width = image.shape[:2]
        bottom = (self.remainder - height) % self.divisor
        right = (self.remainder - width) % self.divisor
        image = cv2.copyMakeBorder(
            image, 0, bottom, 0, right, cv2.BORDER_CONSTANT, value=self.pad_val
        )
        results["img"] = image
        results["img_shape"] = results["pad_shape"] = image.shape[:2]
        results["img_padding_size"] = (0, right, 0, bottom)
        return results
