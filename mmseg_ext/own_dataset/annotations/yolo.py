"""YOLO's segmentation: a .txt file of an image, in which each line is a class and a polygon.

A line such as `0 0.1 0.1 0.5 0.1 0.3 0.4` has the number of a class, and points x, y as shares of
the image. `data.yaml` names the classes. They follow the background by their numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mmseg_ext.own_dataset.annotations.annotation import (
    BACKGROUND,
    Annotation,
    annotations_below,
    reading,
)
from mmseg_ext.own_dataset.annotations.index_map import IndexMap, StoredMap
from mmseg_ext.own_dataset.annotations.polygons import Shape, ShapeFiles, Size, draw, label_of
from mmseg_ext.own_dataset.annotations.reader import Legend, legend_of_names, values_of

_LARGEST = 2  # of a polygon that reaches over its image; larger coordinates are pixels


@dataclass
class Yolo(ShapeFiles):
    """YOLO's files."""

    suffixes = (".txt",)
    names_images = True

    names: Mapping[int, str] = field(default_factory=dict)  # the label of each class's number

    @classmethod
    def find(cls, folder: Path) -> "Yolo":
        names = _read_settings(folder).get("names") or {}
        pairs = names.items() if isinstance(names, dict) else enumerate(names)
        labels = {int(number): label_of(name) for number, name in sorted(pairs)}
        return cls(annotations_below(folder, cls.suffixes), names=labels)

    def read(self, annotation: Annotation, sizes: Sequence[Size]) -> IndexMap:
        height, width = sizes[0]  # upright, as YOLO's own reader has it
        shapes = []
        with reading(annotation.path):
            lines = annotation.path.read_text("utf-8-sig").splitlines()
            for number, line in enumerate(lines, start=1):
                values = np.array(line.split(), float)
                if len(values):
                    _check_line(number, values)
                    label = self.names.get(int(values[0]), str(int(values[0])))
                    points = values[1:].reshape(-1, 2) * (width, height)
                    shapes.append(Shape(label, [points.ravel().tolist()]))
            return draw({}, shapes, sizes[:1], small_last=True)

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        named = [BACKGROUND, *self.names.values()]
        others = sorted(values_of(maps) - set(named), key=int)
        return legend_of_names(list(dict.fromkeys([*named, *others])))


def _check_line(number: int, values: np.ndarray) -> None:
    """Raise ValueError if the numbers of a line are not a class and a polygon."""
    count = len(values)
    if count == 5:
        raise ValueError(
            f"line {number} is a box of 5 numbers; export polygons (YOLO segmentation)"
        )
    if count < 7 or count % 2 == 0:
        raise ValueError(f"line {number} has {count} numbers; a class and points are 7, 9, 11, ...")
    if values[1:].max() > _LARGEST:
        raise ValueError(f"line {number} is in pixels; divide x by the image's width, y by height")


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of `data.yaml`, or a file like it, in a folder or up to two above."""
    for place in (folder, *folder.absolute().parents[:2]):
        for file in sorted(place.glob("*.y*ml")):
            with reading(file):
                content = yaml.safe_load(file.read_bytes())
                if "kpt_shape" in content:
                    raise ValueError("it describes poses; export polygons (YOLO segmentation)")
            if "names" in content:
                return content
    return {}
