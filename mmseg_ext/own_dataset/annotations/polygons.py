"""Shapes with labels, drawn as an index map: polygons, run lengths and pictures of a shape.

The readers of files with shapes (`coco`, `labelme`) share this. Later shapes cover earlier ones,
and pixels in no shape are background.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND, require_size
from mmseg_ext.own_dataset.annotations.index_map import IndexMap


@dataclass
class Shape:
    """A region with a label; one of the other fields has its pixels."""

    label: str
    polygons: Sequence[Sequence[float]] = ()  # x, y, x, y, ... of each part
    run_lengths: Any = None  # COCO's dictionary with counts
    patch: Mapping[str, Any] | None = None  # labelme's PNG of a part of the image


def label_of(name: Any) -> str:
    """Return the label of a name in a file; labelme has one for the background."""
    return BACKGROUND if name == "_background_" else str(name)


def draw(
    size: tuple[int, int], shapes: Sequence[Shape], image_sizes: Sequence[tuple[int, int]]
) -> IndexMap:
    """Return shapes on an image of `size` (height, width); it must be in `image_sizes`.

    The values are the labels, also of shapes that others cover.

    Raises:
        ValueError: for another size, and for a shape without pixels that can be drawn.
    """
    require_size(size, image_sizes)  # before an array of this size exists
    labels = {BACKGROUND: 0}
    indices = np.zeros(size, np.min_scalar_type(len(shapes)))
    for shape in shapes:
        index = labels.setdefault(shape.label, len(labels))
        if shape.patch is not None:
            indices[_patch_pixels(shape.patch, size)] = index
        elif shape.run_lengths is not None:
            indices[_run_pixels(shape.run_lengths, size)] = index
        elif any(len(polygon) >= 6 for polygon in shape.polygons):  # three points
            for polygon in shape.polygons:
                rows, inside = _fill(np.array(polygon, float).reshape(-1, 2), size)
                indices[rows][inside] = index
        else:
            raise ValueError(f"a {shape.label} has no polygon, as in a file for boxes")
    return IndexMap(list(labels), indices)


def _fill(points: np.ndarray, size: tuple[int, int]) -> tuple[slice, np.ndarray]:
    """Return the rows that a polygon (N, 2) of x, y covers, and its pixels (rows, W) in them.

    A pixel counts if its center is inside, by the even-odd rule. OpenCV's fillPoly also draws the
    outline, which adds 7 % to polygons of 30 pixels.
    """
    if not np.isfinite(points).all():
        raise ValueError("a polygon has numbers that are not finite")
    height, width = size
    rows = np.ceil(points[:, 1] - 0.5).clip(0, height).astype(int)  # the first center below
    top, bottom = rows.min(initial=height), rows.max(initial=0)
    inside = np.zeros((max(bottom - top, 0), width), bool)
    centers = np.arange(width) + 0.5
    for i, (x, y) in enumerate(points):
        last_x, last_y = points[i - 1]
        first, last = sorted((rows[i - 1], rows[i]))
        down = np.arange(first, last) + 0.5 - y
        crossing = down
        if len(down):
            crossing = x + down * (last_x - x) / (last_y - y)
        inside[first - top : last - top] ^= centers < crossing[:, None]
    return slice(top, bottom), inside


def _patch_pixels(patch: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Return the pixels (H, W) of labelme's PNG, which can reach over the border."""
    height, width = size
    canvas = Image.new("L", (width, height))
    with Image.open(io.BytesIO(base64.b64decode(patch["mask"]))) as png:
        left, top = map(round, patch["points"][0])
        canvas.paste(png.convert("L"), (left, top))
    return np.array(canvas) > 0


def _run_pixels(run_lengths: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Return the pixels (H, W) of COCO's run lengths, which go down the columns."""
    counts = run_lengths["counts"]
    require_size(tuple(run_lengths.get("size", size)), [size])  # before such an array exists
    if isinstance(counts, list):
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size, order="F")
    try:
        from pycocotools import mask as masks
    except ImportError:
        raise ValueError("compressed run lengths need: pip install pycocotools") from None
    return masks.decode(run_lengths) > 0  # type: ignore  # its types demand a TypedDict
