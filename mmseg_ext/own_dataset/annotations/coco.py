"""COCO files: polygons and run lengths of the images that they list, by category.

Classes follow the background by the numbers of the categories. Small objects cover large ones. A
panoptic file describes the colors of PNG files, which are in a folder with its name or next to it.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmseg_ext.own_dataset.annotations.annotation import (
    BACKGROUND,
    Annotation,
    path_of_name,
    reading,
)
from mmseg_ext.own_dataset.annotations.codes import color_of, read_mask
from mmseg_ext.own_dataset.annotations.formats import format_of
from mmseg_ext.own_dataset.annotations.index_map import IndexMap, StoredMap, at_image_size
from mmseg_ext.own_dataset.annotations.polygons import Drawing, Shape, draw, label_of, shape_of
from mmseg_ext.own_dataset.annotations.reader import Legend, Reader, legend_of_names
from mmseg_ext.own_dataset.matching import Key, key_of, split_in


class _Image(NamedTuple):
    """The entries of a file about an image: `Annotation.content`."""

    entry: dict[str, Any]  # of the list `images`
    objects: list[dict[str, Any]]  # of the list `annotations`
    categories: dict[Any, str]  # the label of each category's number


@dataclass
class Coco(Reader):
    """Images of COCO files."""

    flag = "--coco"
    suffixes = (".json",)
    names_images = True

    categories: Sequence[str] = ()  # of all files, in the order of their numbers

    @classmethod
    def find(cls, paths: Sequence[Path]) -> "Coco":
        """Return the images of these files.

        Raises:
            ValueError: if one is not a COCO file.
        """
        annotations: list[Annotation] = []
        names: dict[str, None] = {}  # in order, without repetitions
        for path in paths:
            try:
                content = json.loads(path.read_bytes())  # UTF-8, also with a byte order mark
                categories = {}
                for entry in content["categories"]:
                    categories[entry["id"]] = label_of(entry["name"])
                names.update(dict.fromkeys(map(categories.__getitem__, sorted(categories))))
                annotations += _annotations(path, content, categories)
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                found = format_of(path)
                if not found:
                    reason = error if isinstance(error, ValueError) else repr(error)
                    found = f"is not a COCO file ({reason}); export polygons or masks as COCO"
                raise ValueError(f"{path}: {found}") from error
        return cls(annotations, categories=list(names))

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        image: _Image = annotation.content
        with reading(annotation.path, annotation.image_name):
            shapes = []
            for item in image.objects:
                if "segments_info" in item:
                    return _read_panoptic(annotation.path, item, image.categories, sizes)
                label, form = image.categories[item["category_id"]], item.get("segmentation")
                if isinstance(form, dict):
                    shapes.append(Shape(label, run_lengths=form))
                else:
                    shapes.append(shape_of(label, _polygons(form or [])))
            declared = image.entry.get("height"), image.entry.get("width")
            return draw(Drawing(shapes, declared), sizes)

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        return legend_of_names(list(dict.fromkeys([BACKGROUND, *self.categories])))


def _read_panoptic(
    path: Path, item: dict[str, Any], categories: dict[Any, str], sizes: Sequence[tuple[int, int]]
) -> IndexMap:
    """Return a PNG of a panoptic file: a color is the number of a segment, red its lowest byte."""
    file = path.with_suffix("") / item["file_name"]
    if not file.exists():
        file = path.with_name(item["file_name"])
    mask = at_image_size(read_mask(file), sizes)
    labels = {}
    for segment in item["segments_info"]:
        color = int(segment["id"]).to_bytes(3, "little")
        labels[int.from_bytes(color, "big")] = categories[segment["category_id"]]
    values = [labels.get(color_of(code), BACKGROUND) for code in mask.values]
    return IndexMap(values, mask.indices, mask.notes)


def _annotations(
    path: Path, content: dict[str, Any], categories: dict[Any, str]
) -> Iterator[Annotation]:
    """Yield each image of a file, and each image that only objects name."""
    file_split = split_in(path.stem)  # instances_val.json: its images are of the split val
    objects = defaultdict(list)
    for item in content["annotations"]:
        objects[str(item["image_id"])].append(item)  # some files mix "3" and 3
    known = set()
    for entry in content["images"]:
        number = str(entry["id"])
        known.add(number)
        folder_split, name = key_of(path_of_name(entry["file_name"]))
        image = _Image(entry, objects[number], categories)
        key = Key(folder_split or file_split, name)
        yield Annotation(key, (path,), entry["file_name"], image)
    for number in sorted(objects.keys() - known):  # they will be listed as left out
        yield Annotation(Key(file_split, ""), (path,), f"of id {number}")


def _polygons(form: list) -> list[list[float]]:
    """Return polygons as x, y, x, y, ... from one such list, several, or one of points (x, y)."""
    if form and not isinstance(form[0], list):
        return [form]
    if len(form) > 2 and all(len(part) == 2 for part in form):
        return [np.ravel(form).tolist()]
    return form
