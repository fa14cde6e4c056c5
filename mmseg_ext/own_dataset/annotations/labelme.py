"""labelme's files: a JSON file of an image, with polygons, boxes, circles and masks.

Classes follow the background in the alphabetical order of the labels.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmseg_ext.own_dataset.annotations.annotation import (
    BACKGROUND,
    Annotation,
    annotations_below,
    reading,
)
from mmseg_ext.own_dataset.annotations.index_map import IndexMap, StoredMap
from mmseg_ext.own_dataset.annotations.polygons import Shape, draw, label_of
from mmseg_ext.own_dataset.annotations.reader import Legend, Reader, legend_of_names, values_of

_CIRCLE = 720  # corners, within 1e-5 of the radius


class Labelme(Reader):
    """labelme's files."""

    suffixes = (".json",)
    ignored = ("__ignore__",)

    @classmethod
    def find(cls, folder: Path) -> "Labelme":
        """Return the files below a folder, or of a pattern; see `keyed_files`."""
        return cls(annotations_below(folder, cls.suffixes))

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        with reading(annotation.path):
            content = json.loads(annotation.path.read_bytes())
            shapes = list(map(_shape, content["shapes"]))
            size = int(content["imageHeight"]), int(content["imageWidth"])
            return draw(size, shapes, sizes)

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        return legend_of_names([BACKGROUND, *sorted(values_of(maps) - {BACKGROUND})])


def _shape(entry: Mapping[str, Any]) -> Shape:
    """Return a shape of a file.

    Raises:
        ValueError: for a line or a point.
    """
    label = label_of(entry["label"])
    kind = entry.get("shape_type") or "polygon"
    points = np.array(entry["points"], float)
    if kind == "mask":
        return Shape(label, patch=entry)
    if kind == "rectangle":  # two corners
        (left, top), (right, bottom) = points.min(0), points.max(0)
        points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    elif kind == "circle":  # its center, and a point on it
        center, on_circle = points[0], points[1]
        turn = np.linspace(0, 2 * np.pi, _CIRCLE)[:, None]
        radius = np.hypot(*(on_circle - center))
        points = center + radius * np.hstack([np.cos(turn), np.sin(turn)])
    elif kind not in ("polygon", "oriented_rectangle"):
        raise ValueError(f"a {kind}; only polygons, boxes, circles and masks are read")
    return Shape(label, polygons=[points.ravel().tolist()])
