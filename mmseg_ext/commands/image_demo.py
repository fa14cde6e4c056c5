"""Segment an image, a folder or a video; write label maps and overlays.

Without CONFIG and CHECKPOINT, the project's own model is used: an EANet that finds the nuclei in
microscopy images.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmseg_ext.commands import command, command_parser, device_flag, model_flags, named_model
from mmseg_ext.errors import join_names, one_line

if TYPE_CHECKING:
    import numpy as np

    from mmseg_ext.inference.georeference import Georeference
    from mmseg_ext.inference.object_files import ObjectFiles
    from mmseg_ext.inference.predictor import Predictor, Segmentation

# Measured: the image as decoded, in RGB and with the colors of the classes, its labels and the
# picture that is written.
BYTES_PER_PIXEL = 17
MAX_PIXELS = 2 * 2**30 // BYTES_PER_PIXEL


class Item(NamedTuple):
    """A photo, a page of a stack with its number from 0, or a frame of a video with its pixels."""

    name: Path  # of its results in their folders
    file: Path
    source: Path | None = None  # its name in tables, if another
    page: int | None = None
    frame: "np.ndarray | None" = None


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("input", type=Path, help="image, folder of images, or video")
    model_flags(parser)
    parser.add_argument("--recursive", action="store_true", help="include subfolders")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the results")
    parser.add_argument("--pages", action="store_true", help="segment each image of a TIFF stack")
    parser.add_argument("--confidence", action="store_true", help="write the labels' probabilities")
    parser.add_argument("--frame-labels", action="store_true", help="write a video's label maps")
    parser.add_argument("--opacity", type=float, default=0.5, help="of the class colors, 0 to 1")
    parser.add_argument("--with-labels", action="store_true", help="write class names on the image")
    limit = f"skip larger images (default: {MAX_PIXELS}, about 2 GiB)"
    parser.add_argument("--max-pixels", type=int, default=MAX_PIXELS, help=limit)
    parser.add_argument("--tile", type=int, metavar="N", help="cut large images into N x N pixels")
    values = "of images of more than 8 bits, that become black and white"
    parser.add_argument(
        "--value-range", nargs=2, type=float, metavar=("LOW", "HIGH"), help=f"values {values}"
    )
    parser.add_argument("--json", action="store_true", help="write each image's objects as GeoJSON")
    parser.add_argument("--coco", action="store_true", help="write all objects to coco.json")
    tables = "write shares and counts to classes.csv, and measured objects to objects.csv"
    parser.add_argument("--csv", action="store_true", help=tables)
    side = "side of a pixel in micrometers, for objects.csv"
    parser.add_argument("--pixel-size", type=float, metavar="UM", help=side)
    least = "of an object, in pixels (default: 16 of the network's input)"
    parser.add_argument("--min-area", type=int, help=least)
    names = "of the objects (default: all but background and border)"
    parser.add_argument("--classes", nargs="+", metavar="NAME", help=names)
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    device_flag(parser)
    return parser


def find_images(path: Path, out: Path, recursive: bool = False, pages: bool = False) -> list[Item]:
    """Return the photos at `path`, with unique names for their results.

    With `pages` each image of a TIFF stack is one. The pictures of an earlier run, in folders of
    `out`, are left out.

    Raises:
        ValueError: if there is no image.
    """
    from mmseg_ext.images.files import image_files
    from mmseg_ext.images.values import IMAGE_SUFFIXES

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
        count = _count_pages(file) if pages else 1
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


def _count_pages(path: Path) -> int:
    """Return the number of images in a file; 1 if it is not a TIFF or cannot be read."""
    from mmseg_ext.images.values import tiff_file, tiff_images

    try:
        with tiff_file(path) as file:
            return len(tiff_images(file))
    except Exception:  # of any kind; the prediction reports it
        return 1


@command(parser)
def main(args: argparse.Namespace) -> int:
    import cv2

    from mmseg_ext.inference.object_files import ObjectFiles
    from mmseg_ext.inference.predictor import Predictor
    from mmseg_ext.inference.videos import VIDEO_SUFFIXES

    if not 0 <= args.opacity <= 1:
        raise ValueError(f"--opacity={args.opacity}: choose a number from 0 to 1")
    if args.pixel_size is not None and not 0 < args.pixel_size < float("inf"):
        raise ValueError(f"--pixel-size={args.pixel_size:g}: choose a positive number")
    is_video = args.input.suffix.lower() in VIDEO_SUFFIXES and args.input.is_file()
    photos = [] if is_video else find_images(args.input, args.out, args.recursive, args.pages)
    model = named_model(args)
    for about, text in model.terms.items():
        print(f"{about} (weights): {text}")
    given = {name: getattr(args, name) for name in ("tile", "amp", "value_range", "confidence")}
    predictor = Predictor(model, **given)
    unknown = set(args.classes or ()) - set(predictor.classes)
    if unknown:
        names = ", ".join(predictor.classes)
        raise ValueError(f"--classes {' '.join(unknown)}: the model has only {names}")
    warnings.showwarning = _print_warning  # as Python's documentation allows
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)  # it lists GeoTIFF's tags
    if args.checkpoint == "none":
        print("warning: random weights: the labels are meaningless", file=sys.stderr)
    formats = [name for name in ("json", "coco", "csv") if getattr(args, name)]
    files = ObjectFiles(args.out, formats, predictor.classes, args.classes, args.pixel_size)
    if is_video:
        done, count = _segment_video(args, predictor, files)
    else:
        done, count = _segment(args, photos, len(photos), predictor, files), len(photos)
    files.write()
    print(f"{done} {'frames' if is_video else 'images'} segmented into {args.out}")
    if files.small:
        print(f"left out: {files.small} objects smaller than --min-area; --min-area 0 keeps them")
    if files.unplaced:
        text = "declares no EPSG code or no transform, and so does its GeoJSON; gdalwarp adds both"
        print(f"warning: {join_names(files.unplaced)}: {text}", file=sys.stderr)
    return int(done < count)


def _segment_video(
    args: argparse.Namespace, predictor: "Predictor", files: "ObjectFiles"
) -> tuple[int, int]:
    """Write the results of a video; return the numbers of its results and of its frames."""
    from mmseg_ext.inference.videos import frames, open_video, video_writer

    capture, count, rate = open_video(args.input)
    items = (
        Item(Path(args.input.stem, f"{number:06}.png"), args.input, frame=frame)
        for number, frame in frames(capture, count)
    )
    with video_writer(args.out / "overlays" / f"{args.input.stem}.mp4", rate) as add_frame:
        done = _segment(args, items, count, predictor, files, add_frame)
        if not done:
            raise ValueError(f"{args.input}: no frame decodes; convert the video with ffmpeg")
    if done < count:
        _print_error(f"{count - done} of {count} frames do not decode", args.input)
    return done, count


def _segment(
    args: argparse.Namespace,
    items: Iterable[Item],
    count: int,
    predictor: "Predictor",
    files: "ObjectFiles",
    add_frame: "Callable[[np.ndarray], None] | None" = None,
) -> int:
    """Write the results of photos, pages or frames, and return the number that did not fail."""
    import numpy as np

    from mmseg_ext.terminal import progress

    if not args.tile:  # tiles have their own progress bar, and a terminal shows only one
        items = progress(items, "segmenting", count)
    done = 0
    for item in items:
        try:
            image, place = _read(item, args.max_pixels)
            result = predictor(image)
            objects = files.objects(result, args.min_area)
            overlay = result.overlay(args.opacity, objects, args.with_labels, not add_frame)
            values = _values(image, predictor.channels) if args.csv else None
        except Exception as error:  # of any kind: decoders, the pipeline and the model raise it
            _print_error(error, item.file, item.page)
            continue
        done += 1
        if add_frame:
            add_frame(np.asarray(overlay))
        else:
            _write_png(overlay, args.out / "overlays" / item.name)
        if not add_frame or args.frame_labels or args.confidence:
            _write_maps(result, args.out, item.name, place)
        files.add(result, objects, item.source or item.name, item.name, place, values)
    return done


def _read(item: Item, most: int) -> "tuple[Any, Georeference | None]":
    """Return what the predictor takes, and the place of a photo on a map.

    Raises:
        ValueError: for a photo of more than `most` pixels, which is not decoded.
    """
    from mmseg_ext.images.files import image_size
    from mmseg_ext.images.values import read_page
    from mmseg_ext.inference.georeference import read_georeference

    if item.frame is not None:
        return item.frame, None
    width, height = image_size(item.file)
    if width * height > most:
        memory = f"needs {width * height * BYTES_PER_PIXEL / 2**30:.1f} GiB or more"
        allow = f"allow it with --max-pixels {width * height}"
        raise ValueError(f"{item.file}: has {width}x{height} pixels and {memory}; {allow}")
    place = read_georeference(item.file, item.page)
    return item.file if item.page is None else read_page(item.file, item.page), place


def _print_warning(message: Warning | str, *place: object) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _print_error(error: object, path: Path, page: int | None = None) -> None:
    """Print one line with the path of the image, which many errors begin with."""
    text = one_line(error)
    if page is not None:
        text = f"page {page + 1}: {text.removeprefix('image: ')}"
    if str(path) not in text:
        text = f"{path}: {text}"
    print(f"error: {text}", file=sys.stderr)


def _values(image: Any, channels: int) -> "np.ndarray":
    """Return the values (H, W, bands) of an image in its file, without alpha that is no channel."""
    import numpy as np

    from mmseg_ext.images.files import read, read_bytes

    if isinstance(image, np.ndarray):  # a frame
        return image
    pixels = read(read_bytes(str(image)), str(image)) if isinstance(image, Path) else image
    return pixels.upright().bands(channels)


def _write_maps(
    result: "Segmentation", folder: Path, name: Path, place: "Georeference | None" = None
) -> None:
    """Write `labels/NAME` and `confidence/NAME`; GeoTIFFs of an image that has a place."""
    import numpy as np
    from PIL import Image

    from mmseg_ext.inference.georeference import write_geotiff

    maps = {"labels": result.labels}
    if result.confidence is not None:
        maps["confidence"] = np.rint(result.confidence * np.float16(255)).astype(np.uint8)
    for kind, values in maps.items():
        if place is None:
            _write_png(Image.fromarray(values), folder / kind / name)
        else:
            write_geotiff(values, place, folder / kind / name.with_suffix(".tif"))


def _write_png(picture: Any, path: Path) -> None:
    from mmseg_ext.atomic_write import atomic_write

    with atomic_write(path) as part:
        picture.save(part, "PNG")
