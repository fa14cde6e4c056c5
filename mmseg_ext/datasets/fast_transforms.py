"""mmsegmentation's `RandomCrop` and `PhotoMetricDistortion`, with equal results in less time.

`RandomCrop` counts the pixels of each class up to ten times for an image, and each time sorts the
labels of a crop. `PhotoMetricDistortion` multiplies each pixel in float32, although there are only
256 values of a byte. The classes here use tables instead. They make the same random draws, so a
training with them is the same, bit by bit.

`CheckedDataset` builds them where a pipeline names mmsegmentation's classes; that is the only place
which selects them.
"""

from typing import Any

import cv2
import numpy as np
from mmcv.transforms.utils import cache_randomness
from mmseg.datasets.transforms import PhotoMetricDistortion, RandomCrop
from mmseg.registry import TRANSFORMS


class CountingRandomCrop(RandomCrop):
    """`RandomCrop` that counts the pixels of each class, instead of sorting all labels."""

    @cache_randomness
    def crop_bbox(self, results: dict) -> tuple[int, int, int, int]:
        """Draw top, bottom, left and right, again if one class has too many of the pixels."""
        size = results["img"].shape[:2]
        box = self._draw_box(size)
        if self.cat_max_ratio >= 1:
            return box
        for _ in range(10):
            label = self.crop(results["gt_seg_map"], box)
            if label.dtype == np.uint8:
                counts = np.bincount(label.ravel())
                classes = np.flatnonzero(counts)
                counts = counts[classes]
            else:  # with values that are no index, as -1
                classes, counts = np.unique(label, return_counts=True)
            counts = counts[classes != self.ignore_index]
            if len(counts) > 1 and counts.max() / counts.sum() < self.cat_max_ratio:
                break
            box = self._draw_box(size)
        return box

    def _draw_box(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        height, width = self.crop_size
        top = np.random.randint(0, max(size[0] - height, 0) + 1)
        left = np.random.randint(0, max(size[1] - width, 0) + 1)
        return top, top + height, left, left + width


_BYTES = np.arange(256, dtype=np.uint8)  # the input of each table


class TablePhotoMetricDistortion(PhotoMetricDistortion):
    """`PhotoMetricDistortion` that computes the new value of each byte once, not of each pixel."""

    def convert(self, img: np.ndarray, alpha: Any = 1, beta: Any = 0) -> np.ndarray:
        """Return `img * alpha + beta`, clipped to 0 to 255."""
        if img.dtype != np.uint8:
            return super().convert(img, alpha, beta)
        table = super().convert(_BYTES, alpha, beta)
        return cv2.LUT(img, table).reshape(img.shape)  # OpenCV drops a last axis of 1

    def hue(self, img: np.ndarray) -> np.ndarray:
        """Shift the hue of a BGR image, in half of the calls."""
        if img.dtype != np.uint8:
            return super().hue(img)
        if np.random.randint(2):
            shift = np.random.randint(-self.hue_delta, self.hue_delta)
            table = ((_BYTES.astype(int) + shift) % 180).astype(np.uint8)
            hsv = cv2.cvtColor(img, cv2.COLOR_BGR2HSV)
            hsv[:, :, 0] = cv2.LUT(hsv[:, :, 0], table)
            img = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
        return img


@TRANSFORMS.register_module()
class LabeledRandomCrop(CountingRandomCrop):
    """`RandomCrop` whose crops have a labeled pixel wherever the image has one.

    A crop without any is drawn again around a random labeled pixel. Sparse annotations need this:
    such a crop trains nothing, and `cat_max_ratio` counts only labeled pixels.
    """

    @cache_randomness
    def crop_bbox(self, results: dict) -> tuple[int, int, int, int]:
        """Draw top, bottom, left and right, as `RandomCrop` if the result has a labeled pixel."""
        box = super().crop_bbox(results)
        labeled = results["gt_seg_map"] != self.ignore_index
        if self.crop(labeled, box).any() or not labeled.any():
            return box
        places = np.flatnonzero(labeled)
        place = np.unravel_index(places[np.random.randint(len(places))], labeled.shape)
        starts = []
        for inside, side, length in zip(place, self.crop_size, labeled.shape, strict=True):
            last = max(length - side, 0)
            starts.append(np.random.randint(max(inside - side + 1, 0), min(inside, last) + 1))
        top, left = starts
        return top, top + self.crop_size[0], left, left + self.crop_size[1]
