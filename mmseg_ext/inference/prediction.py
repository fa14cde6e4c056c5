"""`predict`: segment photos, stacks and videos, and write label maps, overlays and tables.

A photo is opened and decoded once. Its `Photo` goes to the predictor, and to whatever is written of
it: its place on a map, and the values of its bands.
"""

import contextlib
import csv
import errno
import io
import itertools
import json
import logging
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from PIL import Image
from torch import nn

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.errors import NotWritten, one_line
from mmseg_ext.images.files import BYTES_PER_PIXEL, comparable, image_files, read_photo, same_name
from mmseg_ext.images.values import (
    IMAGE_SUFFIXES,
    Photo,
    ValueRange,
    declared,
    tiff_file,
    tiff_images,
)
from mmseg_ext.inference.georeference import place_of, write_geotiff
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.inference.objects import (
    NO_OBJECTS,
    SegmentedObject,
    coco_annotation,
    geojson,
)
from mmseg_ext.inference.predictor import Predictor
from mmseg_ext.inference.segmentation import Segmentation
from mmseg_ext.inference.videos import VIDEO_SUFFIXES, frames, open_video, video_writer
from mmseg_ext.terminal import progress

MAX_PIXELS = 2 * 2**30 // BYTES_PER_PIXEL
# Columns of objects.csv, in pixels; then those in micrometers, and the mean of each band.
FORMATS = ("json", "coco", "csv")
_MEASURES = "area centroid_x centroid_y box_x box_y box_width box_height"
_MEASURES += " equivalent_diameter perimeter circularity"
_MICROMETERS = ["area_um2", "equivalent_diameter_um", "perimeter_um"]
# Names that a disk cannot hold: too long, with a character or bytes that it lacks.
_BAD_NAMES = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)
_LEAST_PIXELS = 16  # of an object, as the network sees it; about one position of its output


@dataclass
class Predicted:
    """The counts of a prediction.

    Attributes:
        kind: "images" (also pages) or "frames".
        done: the number of those with results.
        failed: the number of those without.
        small: objects that were left out because they are smaller than `min_area`.
        unplaced: images whose GeoJSON names no coordinate system, because they declare none.
    """

    kind: str
    done: int
    failed: int
    small: int
    unplaced: list[str]


class Item(NamedTuple):
    """A photo, a page of a stack with its number from 0, or a frame of a video with its pixels."""

    name: Path  # of its results in their folders
    file: Path
    source: Path | None = None  # its name in tables, if it is not `name`
    page: int | None = None
    frame: np.ndarray | None = None


def predict(
    images: str | Path,
    model: nn.Module | str | Path | Config = DEFAULT,
    weights: str | Path | None = None,
    out: str | Path = "outputs",
    *,
    recursive: bool = False,
    pages: bool = False,
    formats: Collection[str] = (),
    classes: Sequence[str] | None = None,
    min_area: float | None = None,
    min_area_um2: float | None = None,
    pixel_size: float | None = None,
    confidence: bool = False,
    frame_labels: bool = False,
    opacity: float = 0.5,
    with_labels: bool = False,
    max_pixels: int = MAX_PIXELS,
    tile: int | None = None,
    value_range: ValueRange | None = None,
    amp: bool = False,
    device: str | torch.device | None = None,
) -> Predicted:
    """Segment an image, a folder or a video; write label maps, overlays and tables to a folder.

    A photo that fails is a line on stderr, and the next ones follow. `mmseg-ext image_demo` calls
    this function; `Predictor` returns labels without writing files.

    Args:
        images: an image, a folder of images, or a video.
        model, weights, device: of `Predictor`.
        out: the folder for the results.
        recursive: include subfolders.
        pages: segment each image of a TIFF stack.
        formats: some of "json" (objects of each image as GeoJSON), "coco" (all objects in
            `coco.json`) and "csv" (shares and counts in `classes.csv`, objects in `objects.csv`).
        classes: that are drawn, and whose objects are written; by default all but background and
            border.
        min_area: pixels that an object needs. By default as in the config's `min_area`, a dict of
            classes, and at least 16 of the network's input.
        min_area_um2: the same in square micrometers, which needs a `pixel_size`.
        pixel_size: side of a pixel in micrometers, for `objects.csv`.
        confidence: write the probability of each pixel's label, 0 to 255.
        frame_labels: write the label maps of a video, too.
        opacity: of the class colors, 0 to 1.
        with_labels: write the names of the classes on the objects.
        max_pixels: skip larger images; by default those that need more than about 2 GiB.
        tile, value_range, amp: of `Predictor`.

    Raises:
        ValueError: if there is no image, for unknown classes, for an `opacity` or `pixel_size` that
            is not possible, and as `Predictor`.
        UnreadableFileError: for a video that does not open.
    """
    images, out = Path(images), Path(out)
    if not 0 <= opacity <= 1:
        raise ValueError(f"--opacity={opacity}: choose a number from 0 to 1")
    is_video = images.suffix.lower() in VIDEO_SUFFIXES and images.is_file()
    found = [] if is_video else find_images(images, out, recursive, pages)
    predictor = Predictor(
        model,
        weights=weights,
        device=device,
        confidence=confidence,
        tile=tile,
        amp=amp,
        value_range=value_range,
    )
    # They list tags of GeoTIFFs, and tags that do not decode.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    files = ResultFiles(out, formats, predictor, classes, pixel_size, min_area, min_area_um2)
    done = 0
    with files, contextlib.ExitStack() as stack:
        items: Iterable[Item] = found
        count, add_frame = len(found), None
        if is_video:
            capture, count, rate = open_video(images)
            items = (
                Item(Path(images.stem, f"{number:06}.png"), images, frame=frame)
                for number, frame in frames(capture, count)
            )
            video = out / "overlays" / f"{images.stem}.mp4"
            add_frame = stack.enter_context(video_writer(video, rate))
        if not tile:  # tiles have their own progress bar, and a terminal shows only one
            items = progress(items, "segmenting", count)
        for item in items:
            try:
                if item.frame is None:
                    photo = read_photo(item.file, item.page, max_pixels)
                else:
                    photo = declared(item.frame, colors=True)
                result = predictor(photo)
                objects = files.objects(result)
                overlay = result.overlay(opacity, objects, with_labels, not add_frame, files.chosen)
                if not add_frame:
                    _write_png(overlay, out / "overlays" / item.name)
                has_labels = not add_frame or frame_labels or confidence
                files.add(item, photo, result, objects, has_labels)
            except Exception as error:  # of any kind: decoders, the pipeline and the model raise it
                if isinstance(error, NotWritten) and error.errno not in _BAD_NAMES:
                    raise  # a full disk or a read-only folder, which the next photos meet, too
                _print_error(error, item.file)
                continue
            done += 1
            if add_frame:
                add_frame(np.asarray(overlay))
        if is_video and not done:
            raise ValueError(f"{images}: no frame decodes; convert the video with ffmpeg")
    failed = max(0, count - done)
    if is_video and failed:
        _print_error(f"{failed} of {count} frames do not decode", images)
    kind = "frames" if is_video else "images"
    return Predicted(kind, done, failed, files.small, files.unplaced)


def find_images(path: Path, out: Path, recursive: bool = False, pages: bool = False) -> list[Item]:
    """Return the photos at `path`, with unique names for their results.

    With `pages` each image of a TIFF stack is one. The pictures of an earlier run, in folders of
    `out`, are left out.

    Raises:
        ValueError: if there is no image.
    """
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    own = {(out / name).resolve() for name in ("labels", "overlays", "confidence")}
    found = [p for p in image_files(path, recursive) if own.isdisjoint(p.resolve().parents)]
    if not found:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise ValueError(f"{path}: no image there ({suffixes}); --recursive searches deeper")
    items: list[Item] = []
    taken: set[str] = set()
    for file in found:
        photo = file.relative_to(path if path.is_dir() else path.parent)
        count = 1
        if pages:
            # Other files have one image. The prediction reports damaged files.
            with contextlib.suppress(Exception), tiff_file(file) as tiff:
                count = len(tiff_images(tiff))
        for page in range(count):
            stem = photo.stem
            if count > 1:
                stem += f"_page{page + 1:0{len(str(count))}}"
            source = photo.with_name(stem + photo.suffix)
            name, longer = photo.with_name(f"{stem}.png"), source.name
            # a.jpg and a.bmp, or A.bmp on disks without cases: the second result is a.bmp.png.
            while comparable(str(name)) in taken:
                longer += ".png"
                name = photo.with_name(longer)
            taken.add(comparable(str(name)))
            items.append(Item(name, file, source, page if count > 1 else None))
    return items


def _print_error(error: object, path: Path) -> None:
    """Print one line with the path of the image, which many errors begin with."""
    text = one_line(error)
    if str(path) not in text:
        text = f"{path}: {text}"
    print(f"error: {text}", file=sys.stderr)


def _write_png(picture: Image.Image, path: Path) -> None:
    with atomic_write(path) as part:
        picture.save(part, "PNG")


class ResultFiles:
    """Writes maps and `objects/*.geojson` of each image at once, tables and `coco.json` at last.

    As a context it writes the last ones at its end, also after Ctrl-C, of the images until then.

    Args:
        folder: where the files are written.
        formats: some of "json", "coco" and "csv".
        predictor: of the images; its classes, and the area of objects by its config.
        chosen: the classes whose objects are written; by default all but background and border.
        pixel_size: side of a pixel in micrometers.
        min_area: pixels that an object needs; by default as in the config, and at least 16 of the
            network's input.
        min_area_um2: the same in square micrometers.

    Raises:
        ValueError: for an unknown format, if the model lacks a chosen class, for a `pixel_size`
            that is not positive, and for `min_area_um2` without one.
    """

    def __init__(
        self,
        folder: Path,
        formats: Collection[str],
        predictor: Predictor,
        chosen: Sequence[str] | None = None,
        pixel_size: float | None = None,
        min_area: float | None = None,
        min_area_um2: float | None = None,
    ):
        if unknown := set(formats) - {*FORMATS}:
            raise ValueError(f"formats: {min(unknown)} is none; use some of {', '.join(FORMATS)}")
        classes = predictor.classes
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
        if min_area is not None and math.isnan(min_area):  # no object is larger
            raise ValueError(f"--min-area={min_area}: choose a number of pixels")
        self.predictor, self.pixel_size, self.min_area = predictor, pixel_size, min_area
        self.numbers = {name: number for number, name in enumerate(classes, 1)}
        self.small = 0  # objects that were left out
        self.unplaced: list[str] = []  # images on maps whose coordinate system has no code
        self.images: list[dict] = []  # of coco.json, as the annotations
        self.annotations: list[dict] = []
        self.rows: list[dict] = []  # of classes.csv
        self.object_rows = io.StringIO(newline="")  # of objects.csv; text needs a tenth of memory
        self.bands = 0  # the most of an image

    def __enter__(self) -> "ResultFiles":
        return self

    def objects(self, result: Segmentation) -> dict[str, list[SegmentedObject]]:
        """Return the objects of the chosen classes, and count those that are too small."""
        usual = round(_LEAST_PIXELS * max(1, result.reduction) ** 2)
        chosen = self.chosen or [name for name in result.classes if name not in NO_OBJECTS]
        objects = {}
        for name in chosen:
            found = result.objects(name)
            least = max(usual, self.predictor.min_area.get(name, 0))
            if self.min_area is not None:
                least = self.min_area
            objects[name] = [each for each in found if each.area >= least]
            self.small += len(found) - len(objects[name])
        return objects

    def add(
        self,
        item: Item,
        photo: Photo,
        result: Segmentation,
        objects: Mapping[str, Sequence[SegmentedObject]],
        labels: bool = True,
    ) -> None:
        """Write an image's maps and GeoJSON, and add its objects to the tables.

        On a map they have its coordinates. `labels`: write the label map.
        """
        place = place_of(photo.geotags, photo.orientation, photo.name)
        maps = {"labels": result.labels} if labels else {}
        if result.confidence is not None:
            maps["confidence"] = np.rint(result.confidence * np.float16(255)).astype(np.uint8)
        for kind, values in maps.items():
            if place is None:
                _write_png(Image.fromarray(values), self.folder / kind / item.name)
            else:
                file = self.folder / kind / item.name.with_suffix(".tif")
                write_geotiff(values, place, file)
        every = list(itertools.chain.from_iterable(objects.values()))
        image = str(item.source or item.name)  # in the tables
        if "json" in self.formats:
            file = self.folder / "objects" / item.name.with_suffix(".geojson")
            colors = dict(zip(result.classes, result.palette.tolist(), strict=True))
            write_text(json.dumps(geojson(every, colors, place)), file)
            if place is not None and not place.crs():
                self.unplaced.append(image)
        height, width = result.labels.shape
        about = {"file_name": image, "width": width, "height": height}
        if "csv" in self.formats:
            row = dict(about)
            for name in self.chosen or result.classes:  # shares of the pixels, and counts
                share = (result.labels == result.classes.index(name)).mean()
                row[f"{name} share"] = f"{share:.6f}"
                if name in objects:
                    row[f"{name} objects"] = len(objects[name])
            self.rows.append(row)
            # As in the file, without alpha unless the network has a channel for it.
            values = photo.upright().bands(self.predictor.channels)
            table = csv.writer(self.object_rows, lineterminator="\n")
            for found in every:
                diameter, perimeter = found.equivalent_diameter, found.perimeter
                measures = [found.area, *found.centroid, *found.box]
                measures += [diameter, perimeter, found.circularity]
                if side := self.pixel_size:
                    measures += [found.area * side**2, diameter * side, perimeter * side]
                measures += found.mean(values)
                self.bands = max(self.bands, values.shape[2])
                table.writerow([image, found.name, *(f"{number:.10g}" for number in measures)])
        if "coco" in self.formats:
            self.images.append({"id": len(self.images) + 1, **about})
            for found in every:
                annotation = {
                    "id": len(self.annotations) + 1,
                    "image_id": len(self.images),
                    "category_id": self.numbers[found.name],
                }
                self.annotations.append(annotation | coco_annotation(found, (height, width)))

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind not in (None, KeyboardInterrupt):
            return
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
