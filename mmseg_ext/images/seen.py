"""How a network sees photos: at which size, in which windows, and so how a file segments them.

    >>> Seen(scale=(512, 512)).size(height=2000, width=3000)
    (341, 512)

`mmseg_ext.inference.scale.read_seen` reads it from a config, and an exported file has it in its
metadata; `segment` runs one. The module needs only NumPy: `demo/run_exported.py` uses it without
this package.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]  # images (1, C, H, W) to scores (1, classes, H, W)
Span = tuple[int, int]  # start, stop
# Factors that differ more are another scale than training, which varies sizes by 1.25 itself.
MOST = 1.5


def window_spans(length: int, side: int, step: int) -> tuple[Span, ...]:
    """Return (start, stop) of the windows of one axis, as mmsegmentation cuts them.

    The last window is shifted to the end of the axis.
    """
    count = max(length - side + step - 1, 0) // step + 1
    stops = [min(i * step + side, length) for i in range(count)]
    return tuple((max(stop - side, 0), stop) for stop in stops)


def usual_overlap(side: int) -> int:
    """Return the pixels that neighboring windows or tiles of a side share if none are given."""
    return side // 8


@dataclass(frozen=True)
class Seen:
    """How a network sees photos. The attributes are keys of an exported file's metadata.

    Attributes:
        scale: limits (width, height) of the size of the network's input.
        scale_factor: factors (width, height), if there is no `scale`. Without both, photos keep
            their size.
        keep_ratio: both sides get one factor: the longer side fits the larger limit, and the
            shorter side the smaller one.
        image_sides: the shortest and the longest long side of the training images, if known.
        window: (height, width) of the windows into which the network's input is cut, if it is.
        stride: (height, width) of the steps between windows.
    """

    scale: tuple[int, int] | None = None
    scale_factor: tuple[float, float] | None = None
    keep_ratio: bool = True
    image_sides: tuple[int, int] | None = None
    window: tuple[int, int] | None = None
    stride: tuple[int, int] | None = None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Seen":
        """Return the record of an exported file; older files lack some keys."""
        given = {}
        for field in fields(Seen):
            value = metadata.get(field.name, field.default)
            given[field.name] = tuple(value) if isinstance(value, list) else value
        seen = cls(**given)
        return seen if metadata.get("dynamic", True) else seen.in_windows(tuple(metadata["size"]))

    def metadata(self) -> dict[str, Any]:
        """Return the attributes for the metadata of an exported file."""
        return {field.name: getattr(self, field.name) for field in fields(Seen)}

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the network's input for a photo.

        It equals the size by mmcv's `Resize`, which fails if a side has no pixels.
        """
        limits = self.scale
        if limits is None:
            factors = self.scale_factor or (1, 1)
            limits = int(width * factors[0] + 0.5), int(height * factors[1] + 0.5)
        if not self.keep_ratio:
            return limits[1], limits[0]
        factor = min(max(limits) / max(height, width), min(limits) / min(height, width))
        return int(height * factor + 0.5), int(width * factor + 0.5)

    def nearest(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the photo if it had the nearest training image's long side."""
        long = max(height, width)
        low, high = self.image_sides or (long, long)
        change = min(max(long, low), high) / long
        return max(1, round(height * change)), max(1, round(width * change))

    def trained(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the network's input at the scale of the training images."""
        nearest = self.nearest(height, width)
        seen = self.size(*nearest)
        new_height = int(height * (seen[0] / nearest[0]) + 0.5)
        new_width = int(width * (seen[1] / nearest[1]) + 0.5)
        return new_height, new_width

    def note(self, height: int, width: int, todo: str, views: Sequence[float] = ()) -> str:
        """Return a note if a photo is seen at another scale than the training images, or nothing.

        Args:
            height, width: of the photo.
            todo: the advice, if objects have as many pixels as in the training images.
            views: width of the network's input per width of the photo, for each view of a test-time
                augmentation. By default one view, by `size`.
        """
        nearest = self.nearest(height, width)
        expected = self.size(*nearest)[1] / nearest[1]
        views = views or (self.size(height, width)[1] / width,)
        if min(views) / MOST <= expected <= max(views) * MOST:
            return ""
        long = max(height, width)
        low, high = self.image_sides or (long, long)
        if low <= long <= high:
            return (
                f"tta_pipeline multiplies sizes by {min(views):.2g} to {max(views):.2g}, the test "
                f"pipeline by {expected:.2g}; predict without tta, or set `scale` in tta_pipeline"
            )
        return (
            f"has {long} pixels on its long side, the training images {low} to {high}; the "
            f"network sees it at {views[0] / expected:.2g} times their scale; if objects have as "
            f"many pixels as there, {todo}"
        )

    def in_windows(self, size: tuple[int, int]) -> "Seen":
        """Return the record for windows of a size (height, width), as of a file of that shape."""
        if self.window == size:
            return self
        height, width = (side - usual_overlap(side) for side in size)
        return replace(self, window=size, stride=(height, width))

    def windows(self, height: int, width: int) -> list[tuple[slice, slice]]:
        """Return the windows of a network's input, as rows and columns."""
        window = self.window or (height, width)
        stride = self.stride or window
        rows = window_spans(height, window[0], stride[0])
        columns = window_spans(width, window[1], stride[1])
        return [(slice(*one), slice(*other)) for one, other in product(rows, columns)]


def read_metadata(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an exported file from its properties, which are JSON.

    Other programs add properties of their own, as quantization does; properties that are not JSON
    are left out.
    """
    metadata = {}
    for key, text in properties.items():
        with contextlib.suppress(ValueError):
            metadata[key] = json.loads(text)
    return metadata


def segment(
    run: Run, metadata: Mapping[str, Any], image: np.ndarray, trained: bool = False
) -> np.ndarray:
    """Return class indices (H, W) of an image (H, W, C) by an exported file.

    The image is scaled as in the config's test pipeline, or if `trained` as the training images,
    and cut into windows if it is larger. Where windows overlap, their scores are averaged. A single
    score is of class 1, which a pixel has if its probability is above the file's `threshold`.

    Raises:
        ValueError: for a single score without a threshold, as of older files.
    """
    original, seen = image.shape[:2], Seen.from_metadata(metadata)
    size = seen.trained(*original) if trained else seen.size(*original)
    height, width = (max(1, length) for length in size)
    pixels = resize(image.astype(np.float32).transpose(2, 0, 1), height, width)  # (C, h, w)
    total: Any = None  # scores (classes, h, w)
    count = np.zeros((height, width), dtype=np.float32)
    for rows, columns in seen.windows(height, width):
        here = np.s_[..., rows, columns]
        part = pixels[here]  # (C, h, w)
        if not metadata["dynamic"]:  # the rest gets the color that normalizes to zero
            canvas = np.empty((len(part), *metadata["size"]), dtype=np.float32)
            canvas[:] = np.array(metadata["mean"], dtype=np.float32)[:, None, None]
            canvas[:, : part.shape[1], : part.shape[2]] = part
            part = canvas
        scores = run(np.ascontiguousarray(part[None]))[0]
        scores = scores[:, : rows.stop - rows.start, : columns.stop - columns.start]
        if total is None:
            total = np.zeros((len(scores), height, width), dtype=np.float32)
        total[here] += scores
        count[here] += 1
    total /= count
    if len(total) == 1:
        if metadata.get("threshold") is None:
            raise ValueError(
                "the file has one score for each pixel, and no threshold; export again"
            )
        with np.errstate(over="ignore"):
            probability = 1 / (1 + np.exp(-resize(total[0], *original)))  # (H, W)
        return (probability > metadata["threshold"]).astype(np.uint8)
    best, labels = np.full(original, -np.inf, dtype=np.float32), np.zeros(original, dtype=np.uint16)
    for index, score in enumerate(total):  # one class at a time: all would fill the memory
        score = resize(score, *original)
        labels[score > best] = index
        np.maximum(best, score, out=best)
    return labels.astype(np.min_scalar_type(len(total) - 1))


def resize(maps: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize maps (..., H, W) bilinearly, without antialiasing, as OpenCV and PyTorch do."""
    for axis, size in ((-2, height), (-1, width)):
        old = maps.shape[axis]
        position = ((np.arange(size) + 0.5) * old / size - 0.5).clip(0, old - 1)
        first = np.floor(position).astype(int)
        weight = (position - first).astype(np.float32)
        if axis == -2:
            weight = weight[:, None]
        lower = maps.take(first, axis)
        upper = maps.take(np.minimum(first + 1, old - 1), axis)
        maps = lower + weight * (upper - lower)
    return maps
