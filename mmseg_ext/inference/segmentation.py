"""`Segmentation`: the labels of a photo, their objects, and an overlay.

The overlay is the photo with the outlines of its objects, their names, and a legend with counts. A
label map has an outline where a pixel and its neighbors have different labels. It is drawn inside
the objects, so two that touch have a line each. Background and border are not drawn.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmseg_ext.inference.objects import NO_OBJECTS, SegmentedObject, find_objects

_LINE = 600  # pixels of an image's shorter side for each pixel of an outline's width, which is
_WIDEST_LINE = 3  # at most, because large images have small objects, too
_TEXT = 45  # the same for the size of text, which is at least
_SMALLEST_TEXT = 11
_LARGEST_NAME = 32  # of an object


@dataclass(frozen=True)
class Segmentation:
    """The labels of an image.

    Attributes:
        labels: class indices (H, W), in the smallest unsigned type that has room for all classes.
        classes: names of the classes.
        palette: RGB colors (classes, 3), uint8.
        image: the segmented image, RGB (H, W, 3), uint8; of other images than RGB, the
            `rgb_bands` of the config.
        scores: probabilities of the classes (classes, H, W), float16, if asked for.
        confidence: the highest of them (H, W), float16, if asked for.
        reduction: width of the image, or of a tile, per width of the network's input.
    """

    labels: np.ndarray
    classes: tuple[str, ...]
    palette: np.ndarray
    image: np.ndarray
    scores: np.ndarray | None = None
    confidence: np.ndarray | None = None
    reduction: float = 1.0

    def objects(self, name: str, min_area: int = 0) -> list[SegmentedObject]:
        """Return the connected components of a class with at least `min_area` pixels.

        Raises:
            ValueError: if the model has no class `name`.
        """
        return find_objects(self.labels, self._index(name), name, min_area)

    def _index(self, name: str) -> int:
        if name not in self.classes:
            raise ValueError(f"there is no class {name!r}; use one of {', '.join(self.classes)}")
        return self.classes.index(name)

    def overlay(
        self,
        opacity: float = 0.5,
        objects: Mapping[str, Sequence[SegmentedObject]] | None = None,
        names: bool = False,
        legend: bool = True,
        drawn: Collection[str] | None = None,
    ) -> Image.Image:
        """Return the image with its classes in color and a line around each object.

        Args:
            opacity: of the colors inside the lines, 0 to 1.
            objects: of each class, as counted in the legend.
            names: write each of these objects' class on it.
            legend: add the classes of the objects below the image, with their count and their
                share of the pixels.
            drawn: the classes in color; by default all but background and border.

        Raises:
            ValueError: for an opacity that is not from 0 to 1, and if the model lacks a class.
        """
        if not 0 <= opacity <= 1:
            raise ValueError(f"opacity={opacity}: choose a number from 0 to 1")
        labels = self.labels
        if drawn is None:
            drawn = [name for name in self.classes if name not in NO_OBJECTS]
        is_drawn = np.zeros(len(self.classes), bool)
        is_drawn[[self._index(name) for name in drawn]] = True
        line_width = min(_WIDEST_LINE, max(1, round(min(labels.shape) / _LINE)))
        window = np.ones((2 * line_width + 1, 2 * line_width + 1), np.uint8)
        highest, lowest = cv2.dilate(labels, window), cv2.erode(labels, window)
        drawing = self.image.copy()
        for row in range(len(labels)):  # few bytes at once, for large images
            of_row = labels[row]
            inside = is_drawn[of_row]
            line = inside & ((highest[row] != of_row) | (lowest[row] != of_row))
            colors = self.palette[of_row]
            mixed = self.image[row, inside] * (1 - opacity) + colors[inside] * opacity
            drawing[row, inside] = mixed + 0.5
            drawing[row, line] = colors[line]
        picture = Image.fromarray(drawing)
        shown = {name: found for name, found in (objects or {}).items() if name in drawn}
        if names:
            write_names(picture, itertools.chain.from_iterable(shown.values()))
        if not legend:
            return picture
        texts = {}
        for name, found in shown.items():
            if found:
                share = np.count_nonzero(labels == self.classes.index(name)) / labels.size
                texts[name] = f"{name}: {len(found)} ({100 * share:.1f} %)"
        return with_legend(picture, dict(zip(self.classes, self.palette, strict=True)), texts)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), size)


def _text_size(picture: Image.Image) -> int:
    return max(_SMALLEST_TEXT, min(picture.size) // _TEXT)


def write_names(picture: Image.Image, objects: Iterable[SegmentedObject]) -> None:
    """Write the class of each object at its widest place, if there is room; large ones first."""
    size = min(_LARGEST_NAME, _text_size(picture))
    draw, font, line = ImageDraw.Draw(picture), _font(size), max(1, size // 8)
    taken = np.zeros((picture.height, picture.width), bool)
    for found in sorted(objects, key=lambda found: -found.area):
        inside = cv2.distanceTransform(np.pad(found.mask, 1).view(np.uint8), cv2.DIST_L2, 3)
        row, column = np.unravel_index(inside.argmax(), inside.shape)
        x, y = found.box[0] + column - 1, found.box[1] + row - 1
        _, _, width, height = draw.textbbox((line, line), found.name, font, stroke_width=line)
        left = max(0, min(int(x - width // 2), picture.width - width))
        top = max(0, min(int(y - height // 2), picture.height - height))
        place = np.s_[top : top + height, left : left + width]
        if taken[place].any():
            continue
        taken[place] = True
        corner = (left + line, top + line)
        draw.text(corner, found.name, "white", font, stroke_width=line, stroke_fill="black")


def with_legend(
    picture: Image.Image, colors: Mapping[str, Sequence[int]], texts: Mapping[str, str]
) -> Image.Image:
    """Return the picture above the color, the name and the text of each class."""
    if not texts:
        return picture
    size = _text_size(picture)
    font, row_height = _font(size), 2 * size
    column_width = 3 * size + round(max(map(font.getlength, texts.values())))
    columns = max(1, picture.width // column_width)
    height = picture.height + row_height * math.ceil(len(texts) / columns)
    result = Image.new("RGB", (max(picture.width, column_width), height), "white")
    result.paste(picture)
    draw = ImageDraw.Draw(result)
    for i, (name, text) in enumerate(texts.items()):
        row, column = divmod(i, columns)
        left = column * column_width + size // 2
        top = picture.height + row * row_height + size // 2
        color = tuple(map(int, colors[name]))
        draw.rectangle([left, top, left + size, top + size], fill=color, outline="gray")
        draw.text((left + 1.5 * size, top + size / 2), text, "black", font, anchor="lm")
    return result
