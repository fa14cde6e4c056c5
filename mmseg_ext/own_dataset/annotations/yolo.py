"""YOLO's segmentation: a .txt file of an image, in which each line is a class and a polygon.

A line such as `0 0.1 0.1 0.5 0.1 0.3 0.4` has the number of a class, and points x, y as shares of
the image. `data.yaml` names the classes. They follow the background by their numbers.
"""

import re
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
from mmseg_ext.own_dataset.annotations.index_map import StoredMap
from mmseg_ext.own_dataset.annotations.polygons import Drawing, Shape, ShapeFiles, Size, label_of
from mmseg_ext.own_dataset.annotations.reader import Legend, legend_of_names, values_of

_NAMES = re.compile(rb"^names:", re.M)  # in data.yaml
_LARGEST = 2  # of a polygon that reaches over its image; larger coordinates are pixels


@dataclass
class Yolo(ShapeFiles):
    """YOLO's files."""

    flag = "--yolo"
    suffixes = (".txt",)
    names_images = True

    names: Mapping[int, str] = field(default_factory=dict)  # the label of each class's number
    source: Path = Path()  # the file of the names

    @classmethod
    def find(cls, folder: Path) -> "Yolo":
        file, content = _read_settings(folder)
        names = content.get("names") or {}
        pairs = names.items() if isinstance(names, dict) else enumerate(names)
        labels = {int(number): label_of(name) for number, name in sorted(pairs)}
        return cls(annotations_below(folder, cls.suffixes), source=file, names=labels)

    def parse(self, annotation: Annotation, size: Size) -> Drawing:
        shapes = []
        lines = annotation.path.read_text("utf-8-sig").splitlines()
        for number, line in enumerate(lines, start=1):
            values = np.array(line.split(), float)
            if len(values):
                _check_line(number, values)
                label = self.names.get(int(values[0]), str(int(values[0])))
                points = values[1:].reshape(-1, 2) * size[::-1]
                shapes.append(Shape(label, [points.ravel().tolist()]))
        return Drawing(shapes, size)

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        named = [BACKGROUND, *self.names.values()]
        others = sorted(values_of(maps) - set(named), key=int)
        legend = legend_of_names(list(dict.fromkeys([*named, *others])))
        if self.names:
            legend.notes = [f"the names of the classes are from {self.source}"]
        return legend


def _check_line(number: int, values: np.ndarray) -> None:
    """Raise ValueError if the numbers of a line are not a class and a polygon."""
    count = len(values)
    if count == 5:
        raise ValueError(f"line {number} is a box (5 numbers); export polygons, YOLO segmentation")
    if count < 7 or count % 2 == 0:
        raise ValueError(f"line {number} has {count} numbers; a class and points are 7, 9, 11, ...")
    if values[1:].max() > _LARGEST:
        raise ValueError(f"line {number} is in pixels; divide x by the image's width, y by height")


def _read_settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a file with names, such as `data.yaml`, of a folder or two above, and its content."""
    for place in (folder, *folder.absolute().parents[:2]):
        for file in sorted(place.glob("*.y*ml"), key=lambda file: (file.stem != "data", file)):
            if not _NAMES.search(file.read_bytes()):
                continue
            with reading(file):
                content = yaml.safe_load(file.read_bytes())
                if "kpt_shape" in content:
                    raise ValueError("it describes poses; export polygons, YOLO segmentation")
            return file, content
    return folder, {}
