"""`predict`: segment photos, stacks and videos, and write label maps, overlays and tables.

A photo is opened and decoded once. Its `Photo` goes to the predictor, and to whatever is written of
it: its place on a map, and the values of its bands.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from PIL import Image
from torch import nn

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.errors import one_line
from mmseg_ext.images.files import BYTES_PER_PIXEL, image_files, read_photo
from mmseg_ext.images.values import (
    IMAGE_SUFFIXES,
    ValueRange,
    declared,
    tiff_file,
    tiff_images,
)
from mmseg_ext.inference.georeference import Georeference, place_of, write_geotiff
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.inference.object_files import ObjectFiles
from mmseg_ext.inference.predictor import Predictor, Segmentation
from mmseg_ext.inference.videos import VIDEO_SUFFIXES, frames, open_video, video_writer
from mmseg_ext.terminal import progress

MAX_PIXELS = 2 * 2**30 // BYTES_PER_PIXEL


@dataclass
class Predicted:
    """What `predict` has written.

    Attributes:
        kind: "images" (also pages) or "frames".
        done: the number of those with results.
        failed: the number of those without.
        small: objects that were left out because they are smaller than `min_area`.
        unplaced: images whose GeoJSON names no coordinate system, because they declare none.
    """

    kind: str
    done: int = 0
    failed: int = 0
    small: int = 0
    unplaced: list[str] = field(default_factory=list)


class Item(NamedTuple):
    """A photo, a page of a stack with its number from 0, or a frame of a video with its pixels."""

    name: Path  # of its results in their folders
    file: Path
    source: Path  # its name in tables
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

    A photo that fails is a line on stderr, and the others go on. `mmseg-ext image_demo` calls this
    function; `Predictor` returns labels without writing files.

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
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)  # it lists GeoTIFF's tags
    files = ObjectFiles(
        out,
        formats,
        predictor.classes,
        classes,
        pixel_size,
        predictor.min_area,
        min_area,
        min_area_um2,
    )
    results = Predicted("frames" if is_video else "images")
    with ExitStack() as stack:
        items: Iterable[Item] = found
        count, add_frame = len(found), None
        if is_video:
            capture, count, rate = open_video(images)
            items = _frames(images, frames(capture, count))
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
                # As in the file, without alpha that is no channel of the network.
                values = photo.upright().bands(predictor.channels) if "csv" in formats else None
            except Exception as error:  # of any kind: decoders, the pipeline and the model raise it
                _print_error(error, item.file)
                continue
            results.done += 1
            place = place_of(photo.geotags, photo.orientation, photo.name)
            if add_frame:
                add_frame(np.asarray(overlay))
            else:
                _write_png(overlay, out / "overlays" / item.name)
            if not add_frame or frame_labels or confidence:
                _write_maps(result, out, item.name, place)
            files.add(result, objects, item.source, item.name, place, values)
        if is_video and not results.done:
            raise ValueError(f"{images}: no frame decodes; convert the video with ffmpeg")
    files.write()
    results.failed = max(0, count - results.done)
    if is_video and results.failed:
        _print_error(f"{results.failed} of {count} frames do not decode", images)
    results.small, results.unplaced = files.small, files.unplaced
    return results


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
    items: dict[Path, Item] = {}
    for file in found:
        photo = file.relative_to(path if path.is_dir() else path.parent)
        count = 1
        if pages:
            try:
                with tiff_file(file) as tiff:
                    count = len(tiff_images(tiff))
            except Exception:  # not a TIFF, or a damaged one, which the prediction reports
                count = 1
        for page in range(count):
            stem = photo.stem
            if count > 1:
                stem += f"_page{page + 1:0{len(str(count))}}"
            source = photo.with_name(stem + photo.suffix)
            name = photo.with_name(f"{stem}.png")
            if name in items:  # a.jpg and a.bmp: the second result is a.bmp.png
                name = photo.with_name(f"{source.name}.png")
            items[name] = Item(name, file, source, page if count > 1 else None)
    return list(items.values())


def _frames(video: Path, numbered: Iterable[tuple[int, np.ndarray]]) -> Iterator[Item]:
    for number, frame in numbered:
        name = Path(video.stem, f"{number:06}.png")
        yield Item(name, video, name, frame=frame)


def _print_error(error: object, path: Path) -> None:
    """Print one line with the path of the image, which many errors begin with."""
    text = one_line(error)
    if str(path) not in text:
        text = f"{path}: {text}"
    print(f"error: {text}", file=sys.stderr)


def _write_maps(
    result: Segmentation, folder: Path, name: Path, place: Georeference | None = None
) -> None:
    """Write `labels/NAME` and `confidence/NAME`; GeoTIFFs of an image that has a place."""
    maps = {"labels": result.labels}
    if result.confidence is not None:
        maps["confidence"] = np.rint(result.confidence * np.float16(255)).astype(np.uint8)
    for kind, values in maps.items():
        if place is None:
            _write_png(Image.fromarray(values), folder / kind / name)
        else:
            write_geotiff(values, place, folder / kind / name.with_suffix(".tif"))


def _write_png(picture: Any, path: Path) -> None:
    with atomic_write(path) as part:
        picture.save(part, "PNG")
