"""YOLO's segmentation: a .txt file of an image, in which each line is a class and a polygon.

A line such as `0 0.1 0.1 0.5 0.1 0.3 0.4` has the number of a class, and points x, y as shares of
the image. `data.yaml` or `classes.txt` names the classes, which follow the background by their
numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mmseg_ext.images.files import read_text
from mmseg_ext.own_dataset.annotations.polygons import (
    Shape,
    ShapeFiles,
    Size,
    label_of,
    notes_on_equal,
)
from mmseg_ext.own_dataset.annotations.reader import Annotation, reading

_OTHER = re.compile(r"classes\.txt$|README\b", re.I)  # files of tools without annotations


@dataclass
class Yolo(ShapeFiles):
    """YOLO's files."""

    flag = "--yolo"
    suffixes = (".txt",)
    names_images = True
    is_upright = True

    labels: Mapping[int, str] = field(default_factory=dict)  # of each class's number

    @classmethod
    def find(cls, source: str | Path) -> "Yolo":
        file, names = _read_names(Path(source))
        labels = dict(sorted(names.items()))
        reader: Any = super().find(source)
        reader.annotations = [own for own in reader.annotations if not _OTHER.match(own.path.name)]
        reader.names, reader.labels = list(dict.fromkeys(labels.values())), labels
        if labels:
            reader.notes = [f"names of classes: {file}", *notes_on_equal(labels, file)]
        return reader

    def parse(self, annotation: Annotation, size: Size) -> tuple[list[Shape], tuple]:
        shapes = []
        lines = read_text(annotation.path).splitlines()
        for number, line in enumerate(lines, start=1):
            values = np.array(line.split(), float)
            count = len(values)
            if not count:
                continue
            if count < 7 or count % 2 == 0:
                raise ValueError(
                    f"line {number} has {count} numbers; a class and points are 7, 9, 11, ..., and "
                    "5 are a box: export polygons, YOLO segmentation"
                )
            label = self.labels.get(int(values[0]), str(int(values[0])))
            points = values[1:].reshape(-1, 2) * size[::-1]
            shapes.append(Shape(label, [points]))
        return shapes, size


def _read_names(folder: Path) -> tuple[Path, dict[int, str]]:
    """Return a file with names, `data.yaml` or `classes.txt`, and the label of each class.

    It is in the folder or at most two above; a YAML file counts before a list.
    """
    places = (folder, *folder.absolute().parents[:2])
    for place in places:
        for file in sorted(place.glob("*.y*ml"), key=lambda file: (file.stem != "data", file)):
            if b"names:" not in file.read_bytes():
                continue
            with reading(file):
                content = yaml.safe_load(file.read_bytes())
                names = content.get("names") if isinstance(content, dict) else None
                if not isinstance(names, str | list | dict):  # of another tool
                    continue
                if "kpt_shape" in content:
                    raise ValueError("it describes poses; export polygons, YOLO segmentation")
                if not isinstance(names, dict):
                    names = dict(enumerate([names] if isinstance(names, str) else names))
                return file, {int(number): label_of(name) for number, name in names.items()}
    for file in (place / "classes.txt" for place in places):
        if file.is_file():
            return file, dict(enumerate(filter(None, map(label_of, read_text(file).splitlines()))))
    return folder, {}
