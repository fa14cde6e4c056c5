"""labelme's files: a JSON file of an image, with polygons, boxes, circles and masks.

Classes follow the background in the alphabetical order of the labels.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmseg_ext.own_dataset.annotations.polygons import Shape, ShapeFiles, Size, label_of
from mmseg_ext.own_dataset.annotations.reader import Annotation

_CIRCLE = 720  # corners, within 1e-5 of the radius


class Labelme(ShapeFiles):
    """labelme's files."""

    flag = "--labelme"
    suffixes = (".json",)
    ignored = ("__ignore__",)

    small_last = False
    is_upright = True

    def parse(self, annotation: Annotation, size: Size) -> tuple[list[Shape], tuple]:
        content = json.loads(annotation.path.read_bytes())
        shapes = list(map(_shape, content["shapes"]))
        return shapes, (content.get("imageHeight"), content.get("imageWidth"))


def _shape(entry: Mapping[str, Any]) -> Shape:
    """Return a shape of a file."""
    label = label_of(entry["label"])
    kind = entry.get("shape_type") or "polygon"
    points = np.array(entry["points"], float)
    group = entry.get("group_id")
    if kind == "mask":
        return Shape(label, patch=entry, group=group)
    if kind == "rectangle":  # two corners
        (left, top), (right, bottom) = points.min(0), points.max(0)
        points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    elif kind == "circle":  # its center, and a point on it
        center, on_circle = points[0], points[1]
        turn = np.linspace(0, 2 * np.pi, _CIRCLE)[:, None]
        radius = np.hypot(*(on_circle - center))
        points = center + radius * np.hstack([np.cos(turn), np.sin(turn)])
    # X-AnyLabeling calls a box at an angle a rotation. Others are a line, a linestrip or points.
    elif kind not in ("polygon", "oriented_rectangle", "rotation"):
        return Shape(label, skipped=kind)
    return Shape(label, [points], group=group)
