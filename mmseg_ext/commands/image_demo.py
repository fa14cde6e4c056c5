"""Segment an image or a folder; write label maps and overlays as PNG files.

Without CONFIG and CHECKPOINT, the project's own model is used: an EANet that finds the nuclei in
microscopy images.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import command, command_parser, device_flag, model_flags, named_model
from mmseg_ext.errors import one_line

if TYPE_CHECKING:
    from PIL import Image

    from mmseg_ext.inference.predictor import Segmentation

# Measured: the image as decoded, in RGB and with the colors of the classes, its labels and the
# picture that is written.
BYTES_PER_PIXEL = 17
MAX_PIXELS = 2 * 2**30 // BYTES_PER_PIXEL
LEAST_PIXELS = 16  # of an object, as the network sees it; about one position of its output


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
    values = "of images of more than 8 bits, that become black and white"
    parser.add_argument(
        "--value-range", nargs=2, type=float, metavar=("LOW", "HIGH"), help=f"values {values}"
    )
    parser.add_argument("--json", action="store_true", help="write each image's objects as GeoJSON")
    parser.add_argument("--coco", action="store_true", help="write all objects to coco.json")
    parser.add_argument("--csv", action="store_true", help="write shares and counts to classes.csv")
    least = f"of an object, in pixels (default: {LEAST_PIXELS} of the network's input)"
    parser.add_argument("--min-area", type=int, help=least)
    parser.add_argument(
        "--classes", nargs="+", metavar="NAME", help="of the objects (default: not background)"
    )
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    device_flag(parser)
    return parser


def find_images(path: Path, out: Path, recursive: bool = False) -> dict[Path, Path]:
    """Return the images at `path` by unique names for their results, relative to `out`'s folders.

    The pictures of an earlier run, in folders of `out`, are left out.

    Raises:
        ValueError: if there is no image.
    """
    from mmseg_ext.images.files import image_files
    from mmseg_ext.images.values import IMAGE_SUFFIXES

    own = {(out / name).resolve() for name in ("labels", "overlays")}
    found = [p for p in image_files(path, recursive) if own.isdisjoint(p.resolve().parents)]
    if not found:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise ValueError(f"{path}: no image there ({suffixes}); --recursive searches deeper")
    folder = _folder_of(path)
    results: dict[Path, Path] = {}
    for image in found:
        name = image.relative_to(folder)
        result = name.with_suffix(".png")
        if result in results:  # a.jpg and a.bmp: the second result is a.bmp.png
            result = Path(f"{name}.png")
        results[result] = image
    return results


def _folder_of(path: Path) -> Path:
    """Return the folder in which images have the names that their results get."""
    return path if path.is_dir() else path.parent


@command(parser)
def main(args: argparse.Namespace) -> int:
    from mmseg_ext.inference.object_files import ObjectFiles
    from mmseg_ext.inference.predictor import Predictor
    from mmseg_ext.terminal import progress

    if not 0 <= args.opacity <= 1:
        raise ValueError(f"--opacity={args.opacity}: choose a number from 0 to 1")
    results = find_images(args.input, args.out, args.recursive)
    folder = _folder_of(args.input)
    model = named_model(args)
    for about, text in model.terms.items():
        print(f"{about} (weights): {text}")
    predictor = Predictor(model, tile=args.tile, amp=args.amp, value_range=args.value_range)
    unknown = set(args.classes or ()) - set(predictor.classes)
    if unknown:
        names = ", ".join(predictor.classes)
        raise ValueError(f"--classes {' '.join(unknown)}: the model has only {names}")
    warnings.showwarning = _print_warning  # as Python's documentation allows
    if args.checkpoint == "none":
        print("warning: random weights: the labels are meaningless", file=sys.stderr)
    formats = [name for name in ("json", "coco", "csv") if getattr(args, name)]
    files = ObjectFiles(args.out, formats, predictor.classes, args.classes)
    todo = results.items()
    if not args.tile:  # tiles have their own progress bar, and a terminal shows only one
        todo = progress(todo, "segmenting", len(results))
    failed = 0
    for name, path in todo:
        try:
            _check_size(path, args.max_pixels)
            result = predictor(path)
            draw = _with_labels if args.with_labels else type(result).overlay
            overlay = draw(result, args.opacity)
        except Exception as error:  # of any kind: decoders, the pipeline and the model raise it
            _print_error(error, path)
            failed += 1
            continue
        _write_pictures(result, overlay, args.out, name)
        if formats:
            files.add(result, path.relative_to(folder), name, _least_area(args, result))
    files.write()
    if files.small:
        print(f"left out: {files.small} objects smaller than --min-area; --min-area 0 keeps them")
    print(f"{len(results) - failed} images segmented into {args.out}")
    return int(failed > 0)


def _print_warning(message: Warning | str, *place: object) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _print_error(error: Exception, path: Path) -> None:
    """Print one line with the path of the image, which many errors begin with."""
    text = one_line(error)
    if str(path) not in text:
        text = f"{path}: {text}"
    print(f"error: {text}", file=sys.stderr)


def _write_pictures(
    result: "Segmentation", overlay: "Image.Image", folder: Path, name: Path
) -> None:
    """Write `labels/NAME` and `overlays/NAME`."""
    from PIL import Image

    from mmseg_ext.atomic_write import atomic_write

    for kind, picture in (("labels", Image.fromarray(result.labels)), ("overlays", overlay)):
        with atomic_write(folder / kind / name) as part:
            picture.save(part, "PNG")


def _least_area(args: argparse.Namespace, result: "Segmentation") -> int:
    """Return the least area of an object, in pixels of the image."""
    if args.min_area is not None:
        return args.min_area
    return round(LEAST_PIXELS * max(1, result.reduction) ** 2)


def _check_size(path: Path, most: int) -> None:
    """Raise ValueError for an image of too many pixels; it is not decoded."""
    from mmseg_ext.images.files import image_size

    width, height = image_size(path)
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
