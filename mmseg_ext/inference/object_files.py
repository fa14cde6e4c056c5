"""Files of the objects in segmented images: GeoJSON of each image, a COCO file and a CSV table."""

import csv
import itertools
import json
from collections.abc import Collection, Sequence
from pathlib import Path

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.inference.objects import SegmentedObject, coco_annotation, geojson
from mmseg_ext.inference.predictor import Segmentation

BACKGROUNDS = ("background", "class_0")  # class_0: the lowest value of masks without names


class ObjectFiles:
    """Writes objects to `objects/*.geojson` at once, and to `coco.json` and `classes.csv` at last.

    Args:
        folder: where the files are written.
        formats: some of "json", "coco" and "csv".
        classes: of the model, in the order of its labels.
        chosen: the classes whose objects are written; by default all but the background.
    """

    def __init__(
        self,
        folder: Path,
        formats: Collection[str],
        classes: Sequence[str],
        chosen: Sequence[str] | None = None,
    ):
        self.folder, self.formats, self.chosen = folder, formats, chosen
        self.numbers = {name: number for number, name in enumerate(classes, 1)}
        self.small = 0  # objects that were left out
        self.images: list[dict] = []  # of coco.json, as the annotations
        self.annotations: list[dict] = []
        self.rows: list[dict] = []  # of classes.csv

    def add(self, result: Segmentation, image: Path, name: Path, least: int) -> None:
        """Add the objects of at least `least` pixels.

        The tables call the image `image`; `name` is the path of its GeoJSON in the folder.
        """
        objects = self._objects_by_class(result, least)
        every = list(itertools.chain.from_iterable(objects.values()))
        if "json" in self.formats:
            file = self.folder / "objects" / name.with_suffix(".geojson")
            colors = dict(zip(result.classes, result.palette.tolist(), strict=True))
            write_text(json.dumps(geojson(every, colors)), file)
        height, width = result.labels.shape
        about = {"file_name": str(image), "width": width, "height": height}
        image_id = len(self.images) + 1
        self.images.append({"id": image_id, **about})
        self.rows.append(about | self._shares(result, objects))
        if "coco" in self.formats:
            for found in every:
                annotation = {
                    "id": len(self.annotations) + 1,
                    "image_id": image_id,
                    "category_id": self.numbers[found.name],
                }
                self.annotations.append(annotation | coco_annotation(found, (height, width)))

    def _objects_by_class(
        self, result: Segmentation, least: int
    ) -> dict[str, list[SegmentedObject]]:
        """Return the objects of the chosen classes, and count those that are too small."""
        chosen = self.chosen or [name for name in result.classes if name not in BACKGROUNDS]
        objects = {}
        for name in chosen:
            found = result.objects(name)
            objects[name] = [each for each in found if each.area >= least]
            self.small += len(found) - len(objects[name])
        return objects

    def _shares(self, result: Segmentation, objects: dict[str, list[SegmentedObject]]) -> dict:
        """Return each class's share of the pixels, and the number of its objects."""
        row = {}
        for name in self.chosen or result.classes:
            is_class = result.labels == result.classes.index(name)
            row[f"{name} share"] = f"{is_class.mean():.6f}"
            if name in objects:
                row[f"{name} objects"] = len(objects[name])
        return row

    def write(self) -> None:
        """Write `coco.json` and `classes.csv`."""
        if "coco" in self.formats:
            categories = [{"id": number, "name": name} for name, number in self.numbers.items()]
            content = {
                "images": self.images,
                "annotations": self.annotations,
                "categories": categories,
            }
            write_text(json.dumps(content), self.folder / "coco.json")
        if "csv" in self.formats and self.rows:
            path = self.folder / "classes.csv"
            with atomic_write(path) as part, part.open("w", encoding="utf-8") as file:
                table = csv.DictWriter(file, self.rows[0], lineterminator="\n")
                table.writeheader()
                table.writerows(self.rows)
