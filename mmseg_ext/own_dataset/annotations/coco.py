"""COCO files: polygons and run lengths of the images that they list, by category.

Classes follow the background by the numbers of the categories. Small objects cover large ones. A
panoptic file describes the colors of PNG files, which are in a folder with its name or next to it.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmseg_ext.errors import LabelError
from mmseg_ext.images.files import files_below
from mmseg_ext.own_dataset.annotations.formats import require_no_other
from mmseg_ext.own_dataset.annotations.masks import at_image_size, color_of, read_mask
from mmseg_ext.own_dataset.annotations.polygons import (
    Shape,
    ShapeFiles,
    Size,
    label_of,
    notes_on_equal,
)
from mmseg_ext.own_dataset.annotations.reader import BACKGROUND, Annotation, IndexMap, reading
from mmseg_ext.own_dataset.item import Key, key_of, split_in


@dataclass
class Coco(ShapeFiles):
    """Images of COCO files. The classes are the categories in the order of their numbers."""

    flag = "--coco"
    suffixes = (".json",)
    names_images = True

    stuff: Collection[str] = ()  # labels that are not things, so with `objects` they are none

    @classmethod
    def find(cls, source: str | Path | Sequence[str | Path]) -> "Coco":
        """Return the images of a file or of several, and of the JSON files in folders.

        Raises:
            LabelError: if one is not a COCO file.
            ValueError: if a folder has none.
        """
        given = [source] if isinstance(source, str | Path) else source
        paths, files = list(map(Path, given)), []
        for path in paths:
            if not path.exists():
                raise ValueError(f"{path}: there is no such file; give a file of COCO, or a folder")
            found = [path]
            if path.is_dir():
                found = [file for file in files_below(path) if file.suffix.lower() == ".json"]
            if not found:
                require_no_other(path, cls.suffixes)
                raise ValueError(f"{path}: has no JSON file; give a file of COCO")
            files += found
        annotations: list[Annotation] = []
        names: dict[str, None] = {}  # in order, without repetitions
        notes, objects, stuff = [], [], set()
        for path in files:
            with reading(path, cls.flag):
                content = json.loads(path.read_bytes())  # UTF-8, also with a byte order mark
                categories = _categories(content)
                names.update(dict.fromkeys(categories.values()))
                notes += notes_on_equal(categories, path)
                objects += content["annotations"]
                for entry in content["categories"]:
                    if entry.get("isthing") == 0:
                        stuff.add(label_of(entry["name"]))
                split = split_in(path.stem)  # instances_val.json: its images are of the split val
                if path not in paths:  # val/_annotations.coco.json
                    split = split or split_in(path.parent.name)
                annotations += _annotations(path, content, categories, split)
        drawn = (item.get("segmentation", "segments_info" in item) for item in objects)
        if not any(drawn):
            has = f"has only boxes or points ({len(objects)} in all files)"
            text = has if objects else "has no annotations, as a list of images without labels"
            raise LabelError(f"{files[0]}: {text}; export polygons or masks")
        return cls(annotations, names=list(names), notes=notes, stuff=stuff)

    def has_objects(self, annotation: Annotation) -> bool:
        return annotation.content is None or bool(annotation.content[1])

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        _, objects, categories, _ = annotation.content
        for item in objects:
            if isinstance(item, dict) and "segments_info" in item:
                with reading(annotation.path, self.flag, annotation.image_name):
                    return self._read_panoptic(annotation.path, item, categories, sizes)
        return super().read(annotation, sizes)

    def parse(self, annotation: Annotation, size: Size) -> tuple[list[Shape], tuple]:
        entry, objects, categories, by_label_studio = annotation.content
        height, width = size
        declared = entry.get("height"), entry.get("width")
        # Then points are shares of the upright photo, times the sides of the turned one.
        has_wrong_sides = by_label_studio and declared == (width, height)
        shapes = []
        for item in objects:
            label, form = _label(item, categories), item.get("segmentation") or []
            if self.objects and label in self.stuff:
                label = BACKGROUND
            if isinstance(form, dict):
                shapes.append(Shape(label, run_lengths=form))
            elif form and all(not isinstance(part, list) or len(part) == 2 for part in form):
                shapes.append(Shape(label, [form]))  # one polygon: x, y, x, y, ..., or its points
            else:
                shapes.append(Shape(label, [polygon for polygon in form if polygon]))
            if has_wrong_sides:
                for polygon in shapes[-1].polygons:
                    polygon.reshape(-1, 2)[:] *= width / height, height / width
        return shapes, size if has_wrong_sides else declared

    def _read_panoptic(
        self, path: Path, item: dict[str, Any], categories: dict[str, str], sizes: Sequence[Size]
    ) -> IndexMap:
        """Return a PNG of a panoptic file: a color is the number of a segment, red its low byte."""
        file = path.with_suffix("") / item["file_name"]
        if not file.exists():
            file = path.with_name(item["file_name"])
        mask = at_image_size(read_mask(file), sizes)
        labels = {}
        for segment in item["segments_info"]:
            color = int(segment["id"]).to_bytes(3, "little")
            label = _label(segment, categories)
            if not (self.objects and label in self.stuff):
                labels[int.from_bytes(color, "big")] = label
        values = [labels.get(color_of(code), BACKGROUND) for code in mask.values]
        return IndexMap(values, mask.indices, mask.notes)


def _label(item: dict[str, Any], categories: dict[str, str]) -> str:
    """Return the label of an object."""
    number = _id(item["category_id"])
    if number not in categories:
        raise ValueError(f"an object has the category {number}, which the file does not list")
    return categories[number]


def _id(value: Any) -> str:
    """Return an id of a file, which can mix 3, "3" and, if pandas has written it, 3.0."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _categories(content: dict[str, Any]) -> dict[str, str]:
    """Return the label of each category's number, in order, without Roboflow's one of all others.

    It has the number 0, no objects, and is the supercategory of others.
    """
    entries = content["categories"]
    used = set()
    for item in content["annotations"]:
        parts = (item, *item.get("segments_info", ()))
        used.update(_id(part.get("category_id")) for part in parts)
    groups = {entry.get("supercategory") for entry in entries}
    categories = {}
    for entry in sorted(entries, key=lambda entry: _id(entry["id"]).zfill(9)):
        number = _id(entry["id"])
        if number != "0" or number in used or entry["name"] not in groups:
            categories[number] = label_of(entry["name"])
    return categories


def _annotations(
    path: Path, content: dict[str, Any], categories: dict[str, str], file_split: str | None
) -> Iterator[Annotation]:
    """Yield each image of a file, and each image that only objects name."""
    info, objects = content.get("info"), defaultdict(list)
    by_label_studio = isinstance(info, dict) and info.get("contributor") == "Label Studio"
    for item in content["annotations"]:
        objects[_id(item["image_id"])].append(item)
    known: dict[str, str] = {}  # the name of each number
    for entry in content["images"]:
        number, given = _id(entry["id"]), entry["file_name"]
        other = known.get(number)
        if other == given:  # listed twice
            continue
        known[number] = given
        if other is not None:
            text = f"{other} and {given} both have the id {number}, so their objects are not known"
            raise ValueError(f"{text}; give each image its own id")
        file_name = urlsplit(given).path if "://" in given else given
        file_name = file_name.strip().replace("\\", "/")  # Windows' separators
        folder_split, name = key_of(Path(file_name.lstrip("/")))
        image = (entry, objects[number], categories, by_label_studio)
        key = Key(folder_split or file_split, name)
        yield Annotation(key, (path,), entry["file_name"], image)
    for number in sorted(objects.keys() - known):  # they will be listed as left out
        yield Annotation(Key(file_split, ""), (path,), f"of id {number}")
