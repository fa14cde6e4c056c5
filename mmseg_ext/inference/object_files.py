"""Files of the objects in segmented images: GeoJSON of each image, a COCO file and CSV tables."""

import csv
import io
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.images.files import same_name
from mmseg_ext.inference.georeference import Georeference
from mmseg_ext.inference.objects import (
    NO_OBJECTS,
    SegmentedObject,
    coco_annotation,
    find_objects,
    geojson,
)
from mmseg_ext.inference.predictor import Segmentation

# Columns of objects.csv, in pixels; then those in micrometers, and the mean of each band.
_MEASURES = "area centroid_x centroid_y box_x box_y box_width box_height"
_MEASURES += " equivalent_diameter perimeter circularity"
_MICROMETERS = ["area_um2", "equivalent_diameter_um", "perimeter_um"]
_LEAST_PIXELS = 16  # of an object, as the network sees it; about one position of its output


class ObjectFiles:
    """Writes objects to `objects/*.geojson` at once, and to tables and `coco.json` at last.

    Args:
        folder: where the files are written.
        formats: some of "json", "coco" and "csv".
        classes: of the model, in the order of its labels.
        chosen: the classes whose objects are written; by default all but background and border.
        pixel_size: side of a pixel in micrometers.
        usual_area: pixels that an object of a class needs, if more than 16 of the network's input.
        min_area: pixels that all objects need instead.
        min_area_um2: the same in square micrometers.

    Raises:
        ValueError: if a chosen class is not in `classes`, for a `pixel_size` that is not positive,
            and for `min_area_um2` without one.
    """

    def __init__(
        self,
        folder: Path,
        formats: Collection[str],
        classes: Sequence[str],
        chosen: Sequence[str] | None = None,
        pixel_size: float | None = None,
        usual_area: Mapping[str, float] | None = None,
        min_area: float | None = None,
        min_area_um2: float | None = None,
    ):
        chosen = [same_name(name, classes) for name in chosen or ()]
        if unknown := [name for name in chosen if name not in classes]:
            names = ", ".join(classes)
            raise ValueError(f"--classes {' '.join(unknown)}: the model has only {names}")
        self.folder, self.formats, self.chosen = folder, formats, chosen or None
        if pixel_size is not None and not 0 < pixel_size < float("inf"):
            raise ValueError(f"--pixel-size={pixel_size:g}: choose a positive number")
        if min_area_um2 is not None:
            if pixel_size is None or min_area is not None:
                raise ValueError("--min-area-um2: pass --pixel-size, too, and no --min-area")
            min_area = min_area_um2 / pixel_size**2
        self.pixel_size, self.usual_area, self.min_area = pixel_size, usual_area or {}, min_area
        self.numbers = {name: number for number, name in enumerate(classes, 1)}
        self.small = 0  # objects that were left out
        self.unplaced: list[str] = []  # images on maps whose coordinate system has no code
        self.images: list[dict] = []  # of coco.json, as the annotations
        self.annotations: list[dict] = []
        self.rows: list[dict] = []  # of classes.csv
        self.object_rows = io.StringIO(newline="")  # of objects.csv; text needs a tenth of memory
        self.bands = 0  # the most of an image

    def objects(self, result: Segmentation) -> dict[str, list[SegmentedObject]]:
        """Return the objects of the chosen classes, and count those that are too small."""
        usual = round(_LEAST_PIXELS * max(1, result.reduction) ** 2)
        chosen = self.chosen or [name for name in result.classes if name not in NO_OBJECTS]
        objects = {}
        for name in chosen:
            found = find_objects(result.labels, result.classes.index(name), name)
            least = max(usual, self.usual_area.get(name, 0))
            if self.min_area is not None:
                least = self.min_area
            objects[name] = [each for each in found if each.area >= least]
            self.small += len(found) - len(objects[name])
        return objects

    def add(
        self,
        result: Segmentation,
        objects: Mapping[str, Sequence[SegmentedObject]],
        image: Path,
        name: Path,
        place: Georeference | None = None,
        values: np.ndarray | None = None,
    ) -> None:
        """Add an image's objects, on a map if it has a place.

        The tables call it `image` and have the means of its `values` (H, W, bands); `name` is the
        path of its GeoJSON in the folder.
        """
        every = list(itertools.chain.from_iterable(objects.values()))
        if "json" in self.formats:
            file = self.folder / "objects" / name.with_suffix(".geojson")
            colors = dict(zip(result.classes, result.palette.tolist(), strict=True))
            write_text(json.dumps(geojson(every, colors, place)), file)
            if place is not None and not place.crs():
                self.unplaced.append(str(image))
        height, width = result.labels.shape
        about = {"file_name": str(image), "width": width, "height": height}
        image_id = len(self.images) + 1
        if "csv" in self.formats:
            self.rows.append(about | self._shares(result, objects))
            self._add_measures(str(image), every, values)
        if "coco" in self.formats:
            self.images.append({"id": image_id, **about})
            for found in every:
                annotation = {
                    "id": len(self.annotations) + 1,
                    "image_id": image_id,
                    "category_id": self.numbers[found.name],
                }
                self.annotations.append(annotation | coco_annotation(found, (height, width)))

    def _add_measures(
        self, image: str, objects: Sequence[SegmentedObject], values: np.ndarray | None
    ) -> None:
        table = csv.writer(self.object_rows, lineterminator="\n")
        for found in objects:
            diameter, perimeter = found.equivalent_diameter, found.perimeter
            row = [found.area, *found.centroid, *found.box, diameter, perimeter, found.circularity]
            if self.pixel_size:
                side = self.pixel_size
                row += [found.area * side**2, diameter * side, perimeter * side]
            means = [] if values is None else found.mean(values)
            self.bands = max(self.bands, len(means))
            table.writerow([image, found.name, *(f"{number:.10g}" for number in row + means)])

    def _shares(
        self, result: Segmentation, objects: Mapping[str, Sequence[SegmentedObject]]
    ) -> dict:
        """Return each class's share of the pixels, and the number of its objects."""
        row = {}
        for name in self.chosen or result.classes:
            is_class = result.labels == result.classes.index(name)
            row[f"{name} share"] = f"{is_class.mean():.6f}"
            if name in objects:
                row[f"{name} objects"] = len(objects[name])
        return row

    def write(self) -> None:
        """Write `coco.json`, `classes.csv` and `objects.csv`."""
        if "coco" in self.formats:
            categories = [{"id": number, "name": name} for name, number in self.numbers.items()]
            content = {
                "images": self.images,
                "annotations": self.annotations,
                "categories": categories,
            }
            write_text(json.dumps(content), self.folder / "coco.json")
        if "csv" in self.formats and self.rows:
            class_rows = io.StringIO(newline="")
            table = csv.DictWriter(class_rows, self.rows[0], lineterminator="\n")
            table.writeheader()
            table.writerows(self.rows)
            write_text(class_rows.getvalue(), self.folder / "classes.csv")
            columns = ["file_name", "class", *_MEASURES.split()]
            if self.pixel_size:
                columns += _MICROMETERS
            columns += [f"mean_{band}" for band in range(1, self.bands + 1)]
            rows = self.object_rows.getvalue()
            write_text(",".join(columns) + "\n" + rows, self.folder / "objects.csv")
