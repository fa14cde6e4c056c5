"""Export a segmentor to ONNX or to torch.export's .pt2, and compare the file with the model."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import exit_on_error
from mmseg_ext.commands._flags import command_parser, read_flags

if TYPE_CHECKING:
    from mmengine.config import Config


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("config", nargs="?", help="by default that of the package's own weights")
    parser.add_argument("checkpoint", nargs="?", help="file, or 'none' for random weights")
    parser.add_argument("--format", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--dynamic", action="store_true", help="images of any size and number")
    parser.add_argument("--fuse", action="store_true", help="fold batch norms, compose EA")
    parser.add_argument("--shape", type=int, nargs="+", help="H [W]; by default the config's crop")
    parser.add_argument("--images", help="a real image or a folder, to compare on")
    parser.add_argument("--out", type=Path, help="file to write; by default CONFIG's name here")
    return parser


# What float32 in another order of operations may change, relative to the largest score.
TOLERANCE = 1e-4
REAL_IMAGES = 3  # of a folder, compared


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = read_flags(parser(), argv)
    import torch

    from mmseg_ext import register_all_modules
    from mmseg_ext.atomic_write import atomic_write
    from mmseg_ext.inference.export import (
        SUFFIXES,
        ExportedSegmentor,
        WholeImageSegmentor,
        export,
        relative_difference,
    )
    from mmseg_ext.inference.models import DEFAULT, get_model, pretrained_weights

    if args.config and not args.checkpoint:
        raise ValueError(f"{args.config} needs a checkpoint after it, or 'none'")
    if not args.config:
        args.config, args.checkpoint = DEFAULT, pretrained_weights(DEFAULT)
    register_all_modules()
    weights = None if args.checkpoint == "none" else args.checkpoint
    segmentor = get_model(args.config, weights=weights)
    config, meta = segmentor.cfg, segmentor.dataset_meta
    size = _size(args.shape, config)
    eager = WholeImageSegmentor(segmentor)
    model = WholeImageSegmentor(segmentor, fuse=True) if args.fuse else eager
    path = args.out or Path(Path(args.config).stem + SUFFIXES[args.format])
    if path.suffix != SUFFIXES[args.format]:
        raise ValueError(f"--out must end in {SUFFIXES[args.format]}, not {path.name!r}")
    metadata = {
        "config": Path(config.filename).name,
        "classes": list(meta["classes"]),
        "palette": [list(color) for color in meta["palette"]],
        "input": "RGB, 0 to 255, float32, (B, 3, H, W)",
        "output": "class scores, float32, (B, classes, H, W)",
        "size": list(size),
        "mean": segmentor.data_preprocessor.mean.flatten().tolist(),
        **_test_scale(config),
        "dynamic": args.dynamic,
        "fused": args.fuse,
    }
    if config.model.get("test_cfg", {}).get("mode") == "slide":
        print(f"the config tests by sliding windows; the file is one window, {size} by default")
    with atomic_write(path) as part:  # what fails the check does not stay
        export(model, part, size, args.dynamic, metadata)
        exported = ExportedSegmentor(part)
        for name, images in _inputs(args, config, size):
            with torch.no_grad():
                scores, expected = exported(images), eager(images)
            difference = relative_difference(scores, expected)
            agreeing = (scores.argmax(1) == expected.argmax(1)).double().mean().item()
            shape = "x".join(map(str, images.shape))
            print(f"{name}, {shape}: difference {difference:.1e}, same class {agreeing:.3%}")
            if not difference <= TOLERANCE:  # nor is NaN
                raise ValueError(
                    f"{path} is not written: on {name} the scores of the file differ from the "
                    f"model's by {difference:.1e} of the largest, more than {TOLERANCE:g}"
                )
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _size(shape: list[int] | None, config: "Config") -> tuple[int, int]:
    shape = shape or config.get("crop_size") or (512, 512)
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError(f"--shape must be one or two positive numbers, not {shape}")
    return (shape[0], shape[-1])


def _test_scale(config: "Config") -> dict:
    """Return how the test pipeline scales images: `scale` (width, height) and `keep_ratio`."""
    from mmseg_ext.datasets.metainfo import transforms, unwrapped

    for transform in transforms(unwrapped(config.test_dataloader.dataset)["pipeline"]):
        if transform["type"] == "Resize" and transform.get("scale"):
            return {"scale": transform["scale"], "keep_ratio": transform.get("keep_ratio", False)}
    return {"scale": None, "keep_ratio": True}


def _inputs(args: argparse.Namespace, config: "Config", size: tuple[int, int]):
    """Named images to compare on: noise, at another size too where any will do, and real ones."""
    import numpy as np
    import torch
    from PIL import Image

    from mmseg_ext.inference.export import random_images

    yield "random", random_images(size)
    if args.dynamic:
        yield "random", random_images((size[0] * 3 // 4 + 1, size[1] * 5 // 4 + 3), 2)
    paths = _real_images(args.images, config)
    if not paths:
        print("no real image compared: the test set is not on this machine; name some by --images")
    for path in paths:
        with Image.open(path) as image:
            image = image.convert("RGB")
            if not args.dynamic:
                image = image.resize(size[::-1])
            pixels = torch.from_numpy(np.asarray(image, dtype=np.float32).copy())  # (H, W, 3)
        yield path.name, pixels.permute(2, 0, 1)[None]  # (1, 3, H, W)


def _real_images(given: str | None, config: "Config") -> list[Path]:
    """The first images of the given folder, or of the test set; the image that is given."""
    from mmseg_ext.datasets.images import image_files
    from mmseg_ext.datasets.metainfo import unwrapped

    if given is None:
        dataset = unwrapped(config.test_dataloader.dataset)
        prefix = dataset.get("data_prefix", {}).get("img_path", "")
        path = Path(dataset.get("data_root", ""), prefix)
    else:
        path = Path(given)
        if not path.exists():
            raise ValueError(f"--images: there is no {given!r}")
    return image_files(path, recursive=True)[:REAL_IMAGES]
