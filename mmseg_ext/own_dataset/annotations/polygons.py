"""Polygons and run lengths with labels, in COCO files and labelme files."""

import base64
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmseg_ext.own_dataset.annotations.masks import (
    BACKGROUND,
    Annotation,
    Masks,
    reading,
    require_size,
)
from mmseg_ext.own_dataset.matching import key_of, split_in


def _label(text: Any) -> str:
    return BACKGROUND if text == "_background_" else str(text)  # labelme's name


class Polygons(Masks):
    """Polygons and run lengths with labels; later ones cover earlier ones, and 0 is background."""

    ignored = ("__ignore__",)  # of labelme

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        def labels(annotation: Annotation) -> set[str]:
            with reading(annotation):
                return {BACKGROUND, *(label for label, _ in self.shapes(annotation)[1])}

        return self._read_each(annotations, labels)

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        """Return the size (H, W), and each shape's label and COCO segmentation or `_pixels`."""
        raise NotImplementedError

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        value = {name: value for value, name in self.labels.items()}
        with reading(annotation):
            size, shapes = self.shapes(annotation)
            require_size(size, sizes)  # before an array of this size exists
            values = np.zeros(size, int)
            for name, shape in shapes:
                if not isinstance(shape, list):
                    values[_pixels(shape, size)] = value[name]
                    continue
                if not any(len(polygon) >= 6 for polygon in shape):  # three points
                    raise ValueError(f"a {name} has no polygon, as in a file for boxes")
                for polygon in shape:
                    rows, inside = _fill(np.array(polygon, float).reshape(-1, 2), size)
                    values[rows][inside] = value[name]
            return values


def _fill(points: np.ndarray, size: tuple[int, int]) -> tuple[slice, np.ndarray]:
    """Return the rows that a polygon (N, 2) of x, y covers, and its pixels (rows, W) in them.

    A pixel counts if its center is inside, by the even-odd rule. OpenCV's fillPoly also draws the
    outline, which adds 7 % to polygons of 30 pixels.
    """
    if not np.isfinite(points).all():
        raise ValueError("a polygon has numbers that are not finite")
    rows = np.ceil(points[:, 1] - 0.5).clip(0, size[0]).astype(int)  # the first center below
    top, bottom = rows.min(initial=size[0]), rows.max(initial=0)
    inside = np.zeros((max(bottom - top, 0), size[1]), bool)
    centers = np.arange(size[1]) + 0.5
    for i, (x, y) in enumerate(points):
        (last_x, last_y), first, last = points[i - 1], *sorted((rows[i - 1], rows[i]))
        down = np.arange(first, last) + 0.5 - y
        crossing = x + down * (last_x - x) / (last_y - y) if len(down) else down
        inside[first - top : last - top] ^= centers < crossing[:, None]
    return slice(top, bottom), inside


def _pixels(shape: Any, size: tuple[int, int]) -> np.ndarray:
    """Return pixels (H, W), also of labelme's PNGs and of COCO's run lengths by column."""
    if isinstance(shape, np.ndarray):
        return shape
    if "mask" in shape:
        canvas = Image.new("L", (size[1], size[0]))
        with Image.open(io.BytesIO(base64.b64decode(shape["mask"]))) as png:
            left, top = map(round, shape["points"][0])
            canvas.paste(png.convert("L"), (left, top))
        return np.array(canvas) > 0
    counts = shape["counts"]
    require_size(tuple(shape.get("size", size)), [size])  # before an array of this size exists
    if isinstance(counts, list):
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size, order="F")
    try:
        from pycocotools import mask as masks
    except ImportError:
        raise ValueError("compressed run lengths need: pip install pycocotools") from None
    return masks.decode(shape) > 0  # type: ignore  # its types demand a TypedDict


class Coco(Polygons):
    """COCO files; categories follow the background by id, and small objects cover large ones."""

    suffixes = (".json",)

    def __init__(self, paths: Sequence[Path]):
        self.files = []
        names: dict[str, None] = {BACKGROUND: None}
        for path in paths:
            split = split_in(path.stem)  # instances_val.json: its images are of the split val
            try:
                content = json.loads(path.read_bytes())  # UTF-8, also with a byte order mark
                categories = {c["id"]: _label(c["name"]) for c in content["categories"]}
                names |= {categories[i]: None for i in sorted(categories)}
                shapes = defaultdict(list)
                for shape in content["annotations"]:
                    shapes[str(shape["image_id"])].append(shape)  # some files mix "3" and 3
                for image in content["images"]:
                    own, name = key_of(Path(image["file_name"].replace("\\", "/")))
                    described = (image, shapes[str(image["id"])], categories)
                    annotation = Annotation(path, image["file_name"], described)
                    self.files.append(((own or split, name), annotation))
                known = {str(image["id"]) for image in content["images"]}
                for number in sorted(shapes.keys() - known):  # `find_pairs` lists them as left out
                    self.files.append(((split, ""), Annotation(path, f"of id {number}")))
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                reason = error if isinstance(error, ValueError) else repr(error)
                text = f"{path}: is not a COCO file ({reason}); export polygons or masks as COCO"
                raise ValueError(text) from error
        self.labels, self.colors = dict(enumerate(names)), {}

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        image, shapes, categories = annotation.content
        # The files' order means nothing: a house after its windows would cover them.
        large_first = sorted(shapes, key=lambda shape: -float(shape.get("area") or 0))
        named = [(categories[s["category_id"]], s["segmentation"]) for s in large_first]
        return (int(image["height"]), int(image["width"])), named


class Labelme(Polygons):
    """labelme's JSON files with polygons and rectangles; the labels are in alphabetical order."""

    suffixes = (".json",)

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        found = super().prepare(annotations)
        self.labels = dict(enumerate([BACKGROUND, *sorted(set().union(*found) - {BACKGROUND})]))
        return found

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        content = json.loads(annotation.path.read_bytes())
        shapes = []
        for shape in content["shapes"]:
            points, kind = np.array(shape["points"], float), shape.get("shape_type") or "polygon"
            if kind == "rectangle":  # two corners
                (left, top), (right, bottom) = points.min(0), points.max(0)
                points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
            elif kind == "circle":  # its center, and a point on it
                turn = np.linspace(0, 2 * np.pi, 720)[:, None]  # within 1e-5 of the radius
                radius = np.hypot(*(points[1] - points[0]))
                points = points[0] + radius * np.hstack([np.cos(turn), np.sin(turn)])
            elif kind not in ("polygon", "oriented_rectangle", "mask"):
                raise ValueError(f"a {kind}; only polygons, boxes, circles and masks are read")
            form = shape if kind == "mask" else [points.ravel().tolist()]
            shapes.append((_label(shape["label"]), form))
        return (int(content["imageHeight"]), int(content["imageWidth"])), shapes
