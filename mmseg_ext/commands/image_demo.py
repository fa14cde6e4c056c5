"""Segment an image or a folder; write label maps and overlays as PNG files.

Without CONFIG and CHECKPOINT, the project's own model is used: an EANet that finds the nuclei in
microscopy images.
"""

import argparse
import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import (
    command,
    command_parser,
    device_flag,
    model_flags,
    named_model,
    usable_device,
)

if TYPE_CHECKING:
    from PIL import Image

    from mmseg_ext.inference.predictor import Segmentation

# Measured with an image of 10,000x8,000 pixels that the pipeline reduces to 512x410: the image as
# decoded, in RGB and with the colors of the classes, its labels and the picture that is written.
BYTES_PER_PIXEL = 17
MAX_PIXELS = 2 * 2**30 // BYTES_PER_PIXEL


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("input", type=Path, help="image, or folder of images")
    model_flags(parser)
    parser.add_argument("--recursive", action="store_true", help="include subfolders")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the results")
    parser.add_argument("--opacity", type=float, default=0.5, help="of the class colors, 0 to 1")
    parser.add_argument("--with-labels", action="store_true", help="write class names on the image")
    limit = f"skip larger images (default: {MAX_PIXELS}, about 2 GiB)"
    parser.add_argument("--max-pixels", type=int, default=MAX_PIXELS, help=limit)
    parser.add_argument("--tile", type=int, metavar="N", help="cut large images into N x N pixels")
    parser.add_argument("--json", action="store_true", help="write each image's objects as GeoJSON")
    parser.add_argument("--coco", action="store_true", help="write all objects to coco.json")
    parser.add_argument("--csv", action="store_true", help="write shares and counts to classes.csv")
    parser.add_argument("--min-area", type=int, default=0, help="of an object, in pixels")
    parser.add_argument(
        "--classes", nargs="+", metavar="NAME", help="of the objects (default: all)"
    )
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    device_flag(parser)
    return parser


def find_images(path: Path, out: Path, recursive: bool = False) -> dict[Path, Path]:
    """Return the images at `path`, each with a unique name for its results.

    The results of an earlier run, in `out`, are left out.

    Raises:
        ValueError: if there is no image.
    """
    from mmseg_ext.datasets.images import IMAGE_SUFFIXES, image_files

    if not path.exists():
        raise ValueError(f"{path}: does not exist")
    if path.is_file():
        return {path: Path(path.stem + ".png")}
    found = image_files(path, recursive)
    found = [p for p in found if out.resolve() not in p.resolve().parents]
    if not found:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise ValueError(f"{path}: contains no image ({suffixes}); --recursive searches deeper")
    names = [p.relative_to(path) for p in found]
    short = [name.with_suffix(".png") for name in names]
    count = Counter(short)
    return {
        image: name.with_name(name.name + ".png") if count[png] > 1 else png
        for image, name, png in zip(found, names, short, strict=True)
    }


@command(parser)
def main(args: argparse.Namespace) -> int:
    from PIL import Image

    from mmseg_ext.datasets.images import progress
    from mmseg_ext.inference.models import DEFAULT, pretrained_weights
    from mmseg_ext.inference.predictor import Predictor

    if not 0 <= args.opacity <= 1:
        raise ValueError(f"--opacity={args.opacity}: choose a number from 0 to 1")
    results = find_images(args.input, args.out, args.recursive)
    if not args.config:
        _introduce(pretrained_weights(DEFAULT))
    model = named_model(args, usable_device(args.device))
    predictor = Predictor(model, tile=args.tile, amp=args.amp)
    for name in args.classes or ():
        if name not in predictor.classes:
            names = ", ".join(predictor.classes)
            raise ValueError(f"--classes {name}: the model has no such class; use one of {names}")
    if args.checkpoint == "none":
        print("warning: random weights: the labels are meaningless", file=sys.stderr)
    failed, measurements = 0, _Measurements(args, predictor.classes)
    # Tiles have their own progress bar, and a terminal shows only one.
    paths = results if args.tile else progress(results, "segmenting", len(results))
    for path in paths:
        try:
            _check_size(path, args.max_pixels)
            result = predictor(path)
            if args.with_labels:
                overlay = _with_labels(result, args.opacity)
            else:
                overlay = result.overlay(args.opacity)
        except Exception as error:  # of any kind: decoders, the pipeline and the model raise it
            text = " ".join(str(error).split())
            print(f"error: {text if str(path) in text else f'{path}: {text}'}", file=sys.stderr)
            failed += 1
            continue
        _save(Image.fromarray(result.labels), args.out / "labels" / results[path])
        _save(overlay, args.out / "overlays" / results[path])
        if args.json or args.coco or args.csv:
            measurements.add(path, results[path], result)
    measurements.write()
    print(f"{len(results) - failed} images segmented into {args.out}")
    return 1 if failed else 0


class _Measurements:
    """The files of --json, --coco and --csv."""

    def __init__(self, args: argparse.Namespace, classes: tuple[str, ...]):
        self.args = args
        self.classes = classes
        self.rows: list[dict] = []  # of the images
        self.annotations: list[dict] = []

    def add(self, path: Path, name: Path, result: "Segmentation") -> None:
        """Measure the objects of an image, and write their GeoJSON file."""
        from mmseg_ext.atomic_write import write_text
        from mmseg_ext.inference.objects import coco_annotation, geojson

        size = height, width = result.labels.shape
        source = path.name if path == self.args.input else str(path.relative_to(self.args.input))
        row = {"image": source, "width": width, "height": height}
        self.rows.append(row)
        every = []
        for number, class_name in enumerate(self.classes, 1):
            if class_name not in (self.args.classes or self.classes):
                continue
            objects = result.objects(class_name, self.args.min_area)
            row[f"{class_name} share"] = f"{(result.labels == number - 1).mean():.6f}"
            row[f"{class_name} objects"] = len(objects)
            every += objects
            for found in objects if self.args.coco else ():
                ids = {"id": len(self.annotations) + 1, "image_id": len(self.rows)}
                ids["category_id"] = number
                self.annotations.append(ids | coco_annotation(found, size))
        if self.args.json:
            file = self.args.out / "objects" / name.with_suffix(".geojson")
            write_text(json.dumps(geojson(every)), file)

    def write(self) -> None:
        """Write the files about all images."""
        from mmseg_ext.atomic_write import write_text

        if self.args.coco:
            content = {
                "images": [
                    {"id": i, "file_name": r["image"], "width": r["width"], "height": r["height"]}
                    for i, r in enumerate(self.rows, 1)
                ],
                "annotations": self.annotations,
                "categories": [{"id": i, "name": name} for i, name in enumerate(self.classes, 1)],
            }
            write_text(json.dumps(content), self.args.out / "coco.json")
        if self.args.csv and self.rows:
            text = io.StringIO()
            table = csv.DictWriter(text, self.rows[0], lineterminator="\n")
            table.writeheader()
            table.writerows(self.rows)
            write_text(text.getvalue(), self.args.out / "classes.csv")


def _check_size(path: Path, most: int) -> None:
    """Raise ValueError for an image of too many pixels; it is not decoded."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit, which `most` replaces
    with Image.open(path) as image:
        width, height = image.size
    if width * height > most:
        memory = f"needs {width * height * BYTES_PER_PIXEL / 2**30:.1f} GiB or more"
        allow = f"allow it with --max-pixels {width * height}"
        raise ValueError(f"{path}: has {width}x{height} pixels and {memory}; {allow}")


def _with_labels(result: "Segmentation", opacity: float) -> "Image.Image":
    """Return mmsegmentation's overlay, with the class names."""
    import numpy as np
    import torch
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    from mmseg.visualization import SegLocalVisualizer
    from PIL import Image

    visualizer = SegLocalVisualizer(alpha=opacity)
    visualizer.dataset_meta = dict(classes=result.classes, palette=result.palette.tolist())
    labels = torch.from_numpy(result.labels.astype(np.int64))[None]  # (1, H, W)
    sample = SegDataSample(pred_sem_seg=PixelData(data=labels))
    visualizer.add_datasample("", result.image, sample, draw_gt=False, with_labels=True)
    return Image.fromarray(visualizer.get_image())


def _introduce(weights: Path) -> None:
    """Print the description of the project's own weights, which is in their file."""
    from mmseg_ext.durable.checkpoint_files import read_checkpoint

    about = read_checkpoint(weights)["meta"]
    classes = about["dataset_meta"]["classes"]
    print(f"weights: {weights}")
    print(f"trained on {about['trained_on']}: mIoU {about['mIoU']}")
    print(f"classes: {', '.join(classes)}")
    print(f"license: {about['license']}")


def _save(picture: "Image.Image", path: Path) -> None:
    from mmseg_ext.atomic_write import atomic_write

    with atomic_write(path) as part:
        picture.save(part, "PNG")
