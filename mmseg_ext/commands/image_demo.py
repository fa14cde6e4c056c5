"""Segment an image or a folder of images; label maps and overlays as PNG files.

Without CONFIG and CHECKPOINT it takes the weights that come with the package: an EANet that knows
the 11 classes of CamVid's street scenes, for non-commercial use.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import exit_on_error, usable_device
from mmseg_ext.commands._flags import command_parser, device_flag, read_flags

if TYPE_CHECKING:
    import numpy as np


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("input", type=Path, help="image, or folder, which is searched through")
    parser.add_argument("config", nargs="?", help="by default that of the package's own weights")
    parser.add_argument("checkpoint", nargs="?", help="file, or 'none' for random weights")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder of the results")
    parser.add_argument("--opacity", type=float, default=0.5, help="of the classes' colours")
    parser.add_argument("--with-labels", action="store_true", help="write the classes' names")
    device_flag(parser)
    return parser


RANDOM = "random weights: the labels mean nothing"


def find_images(path: Path, out: Path) -> dict[Path, Path]:
    """The images at `path` and the name of each one's results, which no two share.

    A folder is searched through. Results of `out`, where that lies in `path`, are left out.

    Raises:
        ValueError: if there is none.
    """
    if path.is_file():
        return {path: Path(path.stem + ".png")}
    if not path.is_dir():
        raise ValueError(f"there is no {str(path)!r}")
    from mmseg_ext.datasets.images import IMAGE_SUFFIXES, image_files

    found = image_files(path, recursive=True)
    found = [p for p in found if out.resolve() not in p.resolve().parents]
    if not found:
        raise ValueError(f"{str(path)!r} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    names = [p.relative_to(path) for p in found]
    short = [name.with_suffix(".png") for name in names]
    return {
        image: name.with_name(name.name + ".png") if short.count(png) > 1 else png
        for image, name, png in zip(found, names, short, strict=True)
    }


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = read_flags(parser(), argv)
    import numpy as np
    import torch
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    from mmseg.visualization import SegLocalVisualizer
    from rich.console import Console
    from rich.progress import track

    from mmseg_ext.errors import UnreadableFileError
    from mmseg_ext.inference.legend import with_banner, with_legend
    from mmseg_ext.inference.models import DEFAULT, get_model, pretrained_weights
    from mmseg_ext.inference.predictor import Predictor

    if not 0 <= args.opacity <= 1:
        raise ValueError(f"--opacity must lie between 0 and 1, not {args.opacity}")
    if args.config and not args.checkpoint:
        raise ValueError(f"{args.config} needs a checkpoint after it, or 'none'")
    results = find_images(args.input, args.out)
    if not args.config:
        args.config, args.checkpoint = DEFAULT, pretrained_weights(DEFAULT)
        _introduce(args.checkpoint)
    weights = None if args.checkpoint == "none" else args.checkpoint
    model = get_model(args.config, weights=weights, device=usable_device(args.device))
    predictor = Predictor(model)
    if weights is None:
        print(f"warning: {RANDOM}", file=sys.stderr)
    visualizer = SegLocalVisualizer(alpha=args.opacity)
    visualizer.dataset_meta = dict(classes=predictor.classes, palette=predictor.palette.tolist())
    broken = 0
    console = Console(stderr=True)
    for path in track(results, "segmenting", console=console, disable=len(results) == 1):
        try:
            result = predictor(path)
        except UnreadableFileError as error:
            print(f"error: {error}", file=sys.stderr)
            broken += 1
            continue
        labels = result.labels
        shown = torch.from_numpy(labels.astype(np.int64))[None]
        sample = SegDataSample(pred_sem_seg=PixelData(data=shown))
        visualizer.add_datasample(
            "", result.image, sample, draw_gt=False, with_labels=args.with_labels
        )
        _save(labels, args.out / "labels" / results[path])
        overlay = visualizer.get_image()
        if weights is None:
            overlay = with_banner(overlay, RANDOM)
        overlay = with_legend(overlay, labels, predictor.classes, predictor.palette)
        _save(overlay, args.out / "overlays" / results[path])
    print(f"{len(results) - broken} images segmented into {args.out}")
    return 1 if broken else 0


def _introduce(weights: Path) -> None:
    """Print what the file tells of this project's own weights."""
    from mmseg_ext.checkpoint.files import read_checkpoint

    about = read_checkpoint(weights)["meta"]
    classes = about["dataset_meta"]["classes"]
    print(f"weights: {weights}")
    print(f"trained on {about['trained_on']}: mIoU {about['mIoU']}")
    print(f"they know {len(classes)} classes of street scenes: {', '.join(classes)}")
    print(f"license: {about['license']}")


def _save(pixels: "np.ndarray", path: Path) -> None:
    from PIL import Image

    from mmseg_ext.atomic_write import atomic_write

    with atomic_write(path) as part:
        Image.fromarray(pixels).save(part, "PNG")
