"""Shapes with labels, drawn as an index map: polygons, run lengths and pictures of a shape.

The readers of files with shapes (`coco`, `labelme`, `yolo`, `geojson`) share this. Later shapes
cover earlier ones, or small ones large ones, and pixels in no shape are background.
"""

import base64
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from mmseg_ext.errors import join_names
from mmseg_ext.images.values import any_size
from mmseg_ext.own_dataset.annotations.reader import (
    BACKGROUND,
    Annotation,
    IndexMap,
    Legend,
    Reader,
    StoredMap,
    legend_of_names,
    plain_name,
    reading,
    require_size,
    values_of,
)

Size = tuple[int, int]  # height and width
_NUMBERED = re.compile(r"(.*[^\d\W])[\W_]*\d+")  # yolk1, yolk 2
_MANY = 4  # names that differ only in their numbers; so many can be those of objects
_NO_SIZE = "shapes without a size are read as on the upright photo, not as on the stored one"


@dataclass
class Shape:
    """A region with a label, and its pixels in another field.

    Raises:
        ValueError: if a polygon is not of pairs of numbers.
    """

    label: str
    polygons: Sequence[Any] = ()  # x, y, x, y, ... of each part, also as points; arrays (N,) then
    run_lengths: Any = None  # COCO's dictionary with counts
    patch: Mapping[str, Any] | None = None  # labelme's PNG of a part of the image
    skipped: str = ""  # what it is, if it is not drawn
    group: Any = None  # shapes of a label in one group are parts of one object

    def __post_init__(self):
        arrays = []
        for polygon in self.polygons:
            try:
                points = np.array(polygon, float)
            except (TypeError, ValueError):
                points = np.empty((0, 0))
            if points.ndim != 1 and points.shape[1:] != (2,):
                text = f"a polygon of a {self.label} is not a list of numbers"
                raise ValueError(f"{text}; write it as x, y, x, y, ...")
            if points.size % 2:
                raise ValueError(f"a polygon of a {self.label} has an x without a y; draw it again")
            arrays.append(points.ravel())
        self.polygons = arrays


@dataclass
class ShapeFiles(Reader):
    """Files with the shapes of images."""

    small_last: ClassVar[bool] = True  # small shapes cover large ones, else later ones earlier ones
    is_upright: ClassVar[bool] = False  # whether the tools draw on photos as EXIF rotates them

    names: Sequence[str] = ()  # labels in the order of the classes, which precede others
    colors: dict[str, str] = field(default_factory=dict)  # #rrggbb of labels that were read
    notes: Sequence[str] = ()

    def parse(self, annotation: Annotation, size: Size) -> tuple[list[Shape], tuple[Any, Any]]:
        """Return the shapes of an image of `size`, and its declared height and width, if any."""
        raise NotImplementedError

    def read(self, annotation: Annotation, sizes: Sequence[Size]) -> IndexMap:
        with reading(annotation.path, self.flag, annotation.image_name):
            shapes, declared = self.parse(annotation, sizes[0])
            size = sizes[0]
            if not self.is_upright or declared != size:
                size = _size_of(shapes, declared, sizes)
            found = _draw(shapes, size, self.small_last, self.objects)
            is_unknown = bool(shapes) and not all(declared) and size != sizes[-1]
            if is_unknown and all(_fits(shape, sizes[-1]) for shape in shapes):
                found.notes = [*found.notes, _NO_SIZE]
            return found

    def has_objects(self, annotation: Annotation) -> bool:
        try:
            return bool(self.parse(annotation, (1, 1))[0])
        except Exception:  # any bytes can be in the file; there can be objects
            return True

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        others = sorted(values_of(maps), key=lambda text: text.zfill(9) if text.isdigit() else text)
        legend = legend_of_names(list(dict.fromkeys([BACKGROUND, *self.names, *others])))
        legend.notes = self.notes
        numbered: dict[str, list[str]] = defaultdict(list)
        for text in legend.texts:
            if found := _NUMBERED.fullmatch(text):
                numbered[found[1]].append(text)
        many = [same for same in numbered.values() if len(same) > _MANY]
        if many:
            legend.hint = (
                f"{join_names(many[0])} are perhaps objects of one class; to count them, start a "
                "new project with --objects, else write one name as the class of each in "
                "data/classes.csv and run again"
            )
        legend.colors = {text: self.colors[text] for text in legend.texts if text in self.colors}
        return legend


def label_of(name: Any) -> str:
    """Return the label of a name in a file; labelme has one for the background."""
    return BACKGROUND if name == "_background_" else plain_name(name)


def notes_on_equal(labels: Mapping[Any, str], path: Path) -> list[str]:
    """Return a note for each label that several numbers of a file have."""
    numbers: dict[str, list[str]] = defaultdict(list)
    for number, label in labels.items():
        numbers[label].append(str(number))
    return [
        f"{path}: {join_names(same)} are all called {label}, so they are one class"
        for label, same in numbers.items()
        if len(same) > 1
    ]


def _draw(every: Sequence[Shape], size: Size, small_last: bool, objects: bool) -> IndexMap:
    """Return shapes on an image. The values are the labels, also of shapes that others cover.

    With `objects` each shape has its own index, or each group of shapes.
    """
    shapes, notes, empty = [], [], []
    for shape in every:
        if shape.polygons and max(map(len, shape.polygons)) < 6:
            shape.skipped = "polygon of less than three points"
        if shape.skipped:
            notes.append(f"a {shape.skipped} is not drawn")
        else:
            shapes.append(shape)
    if small_last:  # the order means nothing: a house after its windows would cover them
        shapes.sort(key=lambda shape: _area(shape, size), reverse=True)
    labels = [BACKGROUND]
    index_of: dict[Any, int] = {BACKGROUND: 0}  # of a label, or of an object
    indices = np.zeros(size, np.min_scalar_type(len(shapes)))
    for number, shape in enumerate(shapes):
        key: Any = shape.label
        if objects:
            key = (shape.label, shape.group) if shape.group is not None else number
        index = index_of.setdefault(key, len(labels))
        if index == len(labels):
            labels.append(shape.label)
        parts: list[tuple[slice, np.ndarray]] = []  # rows, and pixels in them
        if shape.patch is not None:
            parts.append((slice(None), _patch_pixels(shape.patch, size)))
        elif shape.run_lengths is not None:
            parts.append((slice(None), _run_pixels(shape.run_lengths, size)))
        elif shape.polygons:
            parts += [_fill(polygon.reshape(-1, 2), size) for polygon in shape.polygons]
        else:
            text = f"a {shape.label} has no polygon, as in a file for boxes"
            raise ValueError(f"{text}; draw it, or remove it from the file")
        if not any(inside.any() for _, inside in parts):
            empty.append("a shape covers no pixel of its photo: is it too small, or outside?")
        for rows, inside in parts:
            indices[rows][inside] = index
    if shapes and len(empty) == len(shapes):
        empty = ["no shape covers a pixel of its photo: are the coordinates its pixels?"]
    notes += empty
    return IndexMap(labels, indices, notes)


def _size_of(
    shapes: Sequence[Shape], declared: tuple[Any, Any], image_sizes: Sequence[Size]
) -> Size:
    """Return the size that the coordinates of shapes belong to, one of `image_sizes`.

    It is the declared one, if there is one, unless shapes reach over it, but not over the image.
    """
    sizes, (height, width) = list(image_sizes), declared
    if height and width:
        sizes.insert(0, (int(height), int(width)))
    size = sizes[0]
    for candidate in reversed(sizes):
        if all(_fits(shape, candidate) for shape in shapes):
            size = candidate
    require_size(size, image_sizes)  # before an array of this size exists
    return size


def _fits(shape: Shape, size: Size) -> bool:
    """Return whether no part of a shape is more than a pixel outside an image."""
    if shape.run_lengths is not None:
        return tuple(shape.run_lengths.get("size", size)) == size
    for polygon in shape.polygons:
        if max(polygon[::2]) > size[1] + 1 or max(polygon[1::2]) > size[0] + 1:
            return False
    return True


def _area(shape: Shape, size: Size) -> float:
    """Return the area of run lengths or polygons in pixels."""
    if shape.run_lengths is not None:
        return float(_run_pixels(shape.run_lengths, size).sum())
    area = 0.0
    for polygon in shape.polygons:
        area += cv2.contourArea(polygon.astype(np.float32).reshape(-1, 1, 2))
    return area


def _fill(points: np.ndarray, size: Size) -> tuple[slice, np.ndarray]:
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


def _patch_pixels(patch: Mapping[str, Any], size: Size) -> np.ndarray:
    """Return the pixels (H, W) of labelme's PNG, which can reach over the border."""
    height, width = size
    canvas = Image.new("L", (width, height))
    with any_size():
        try:
            png = Image.open(io.BytesIO(base64.b64decode(patch["mask"])))
        except (ValueError, UnidentifiedImageError):  # their texts do not name the shape
            raise ValueError(
                f"the mask of a {patch['label']} is not an image; draw it again"
            ) from None
    with png:
        left, top = map(round, patch["points"][0])
        canvas.paste(png.convert("L"), (left, top))
    return np.array(canvas) > 0


def _run_pixels(run_lengths: Mapping[str, Any], size: Size) -> np.ndarray:
    """Return the pixels (H, W) of COCO's run lengths, which go down the columns.

    A text of them has five bits in each letter, from "0" on, the lowest first; 32 is for more. From
    the third number on these are differences from the number before the last.
    """
    counts = run_lengths["counts"]
    require_size(tuple(run_lengths.get("size", size)), [size])  # before such an array exists
    if isinstance(counts, str):
        text, counts, value, shift = counts, [], 0, 0
        for letter in text.encode():
            value += (letter - 48 & 31) << shift
            shift += 5
            if letter - 48 & 32:
                continue
            if letter - 48 & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if min(counts, default=0) < 0 or sum(counts) != size[0] * size[1]:
        text = f"run lengths of {sum(counts):g} pixels, but the image has {size[0] * size[1]}"
        raise ValueError(f"{text}; export them again")
    is_object = np.arange(len(counts)) % 2 == 1
    return np.repeat(is_object, np.array(counts, int)).reshape(size, order="F")
