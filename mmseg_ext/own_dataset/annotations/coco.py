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

import numpy as np

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
from mmseg_ext.own_dataset.annotations.reader import (
    BACKGROUND,
    Annotation,
    IndexMap,
    reading,
)
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
                categories = dict(sorted(_categories(content).items()))
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
        if objects and not any(drawn):
            text = f"has only boxes or points ({len(objects)} in all files)"
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
            label, form = categories[item["category_id"]], item.get("segmentation") or []
            if self.objects and label in self.stuff:
                label = BACKGROUND
            # Polygons are x, y, x, y, ..., a list of these, or points (x, y).
            if isinstance(form, dict):
                shapes.append(Shape(label, run_lengths=form))
            elif form and not isinstance(form[0], list):
                shapes.append(Shape(label, [form]))
            elif len(form) > 2 and all(len(part) == 2 for part in form):
                shapes.append(Shape(label, [np.ravel(form).tolist()]))
            else:
                shapes.append(Shape(label, [polygon for polygon in form if polygon]))
            if has_wrong_sides:
                factors = width / height, height / width
                parts = [np.reshape(part, (-1, 2)) * factors for part in shapes[-1].polygons]
                shapes[-1].polygons = [part.ravel().tolist() for part in parts]
        return shapes, size if has_wrong_sides else declared

    def _read_panoptic(
        self, path: Path, item: dict[str, Any], categories: dict[Any, str], sizes: Sequence[Size]
    ) -> IndexMap:
        """Return a PNG of a panoptic file: a color is the number of a segment, red its low byte."""
        file = path.with_suffix("") / item["file_name"]
        if not file.exists():
            file = path.with_name(item["file_name"])
        mask = at_image_size(read_mask(file), sizes)
        labels = {}
        for segment in item["segments_info"]:
            color = int(segment["id"]).to_bytes(3, "little")
            label = categories[segment["category_id"]]
            if not (self.objects and label in self.stuff):
                labels[int.from_bytes(color, "big")] = label
        values = [labels.get(color_of(code), BACKGROUND) for code in mask.values]
        return IndexMap(values, mask.indices, mask.notes)


def _categories(content: dict[str, Any]) -> dict[Any, str]:
    """Return the label of each category's number, without Roboflow's category of all others.

    It has the number 0, no objects, and is the supercategory of others.
    """
    entries = content["categories"]
    used = set()
    for item in content["annotations"]:
        used.update(part.get("category_id") for part in (item, *item.get("segments_info", ())))
    groups = {entry.get("supercategory") for entry in entries}
    categories = {}
    for entry in entries:
        if entry["id"] != 0 or entry["id"] in used or entry["name"] not in groups:
            categories[entry["id"]] = label_of(entry["name"])
    return categories


def _annotations(
    path: Path, content: dict[str, Any], categories: dict[Any, str], file_split: str | None
) -> Iterator[Annotation]:
    """Yield each image of a file, and each image that only objects name."""
    info, objects = content.get("info"), defaultdict(list)
    by_label_studio = isinstance(info, dict) and info.get("contributor") == "Label Studio"
    for item in content["annotations"]:
        objects[str(item["image_id"])].append(item)  # some files mix "3" and 3
    known = set()
    for entry in content["images"]:
        number = str(entry["id"])
        known.add(number)
        file_name = entry["file_name"].replace("\\", "/")  # Windows' separators
        folder_split, name = key_of(Path(file_name.lstrip("/")))
        image = (entry, objects[number], categories, by_label_studio)
        key = Key(folder_split or file_split, name)
        yield Annotation(key, (path,), entry["file_name"], image)
    for number in sorted(objects.keys() - known):  # they will be listed as left out
        yield Annotation(Key(file_split, ""), (path,), f"of id {number}")
