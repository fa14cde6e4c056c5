"""Export a segmentor to ONNX; compare the file with the model."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmseg_ext.commands import command, command_parser, model_flags, named_model
from mmseg_ext.errors import join_names, one_line


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    model_flags(parser)
    parser.add_argument("--dynamic", action="store_true", help="images of any size and number")
    shape = "H [W] (default: the test's window or scale)"
    parser.add_argument("--shape", type=int, nargs="+", help=shape)
    parser.add_argument("--images", type=Path, help="image or folder, to compare real images, too")
    parser.add_argument("--out", type=Path, help="output file (default: the config's name)")
    return parser


# Limit of the difference, relative to the largest score. Float32 in another order of operations
# reaches 1e-5.
TOLERANCE = 1e-4
REAL_IMAGES = 3  # of a folder


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.atomic_write import atomic_write
    from mmseg_ext.engine.config import inner_datasets, input_channels
    from mmseg_ext.inference.export import ExportedSegmentor, WholeImageSegmentor, export
    from mmseg_ext.inference.predictor import image_loader
    from mmseg_ext.inference.scale import described_scale

    segmentor = named_model(args)
    config = segmentor.cfg
    channels = input_channels(config.model)
    pipeline = next(inner_datasets(config.test_dataloader.dataset))["pipeline"]
    scaling, others = described_scale(pipeline[1:])
    shape = args.shape or _default_shape(config, scaling, args.dynamic)
    size = (shape[0], shape[-1])
    windows = _windows(config, size, args.dynamic)
    loader = image_loader(pipeline[0], channels)
    model = WholeImageSegmentor(segmentor)
    metadata = {
        **_description(segmentor, channels, loader),
        **scaling,
        **windows,
        "image_sides": config.get("image_sides"),
        "size": list(size),
        "mean": model.mean.flatten().tolist(),
        "dynamic": args.dynamic,
        **segmentor.terms,
    }
    path = args.out or Path(Path(config.filename).stem + ".onnx")
    if others:
        names = join_names(others)
        print(f"the file does not describe {names} of the test pipeline; scale photos like it")
    if windows["window"]:
        print(f"photos that are larger at the scale of the test are cut into windows of {size}")
    with atomic_write(path) as part:  # a file that fails the check is deleted
        export(model, part, size, args.dynamic, metadata, channels)
        exported = ExportedSegmentor(part)
        for name, images in _inputs(args, size, loader, channels):
            _compare(exported, model, name, images, path)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _description(segmentor: Any, channels: int, loader: Any) -> dict:
    """Return the description of the file's classes, input and output."""
    from mmseg_ext.images.pictures import shown_bands

    config, meta = segmentor.cfg, segmentor.dataset_meta
    order = "RGB" if channels == 3 else "bands"
    return {
        "config": Path(config.filename).name,
        "classes": list(meta["classes"]),
        "palette": [list(color) for color in meta["palette"]],
        "input": f"{order}, 0 to 255, float32, (B, {channels}, H, W)",
        "output": "class scores, float32, (B, classes, H, W)",
        "channels": channels,
        "value_range": getattr(loader, "value_range", None),
        "stored_values": getattr(loader, "color_type", "color") == "unchanged",
        "rgb_bands": shown_bands(channels, config.get("rgb_bands")),
    }


def _compare(exported: Any, model: Any, name: str, images: Any, path: Path) -> None:
    """Print how much the scores of file and model differ for images (B, C, H, W).

    Raises:
        ValueError: if the file does not run, or they differ by more than `TOLERANCE`.
    """
    import torch

    from mmseg_ext.inference.export import relative_difference

    shape = "x".join(map(str, images.shape))
    try:
        scores = exported(images)
    except Exception as error:  # onnxruntime's, for sizes that the file does not take
        reason = one_line(error, 300)
        raise ValueError(f"{path}: not written, fails for {shape}: {reason}") from error
    with torch.no_grad():
        expected = model(images)
    difference = relative_difference(scores, expected)
    agreeing = (scores.argmax(1) == expected.argmax(1)).double().mean().item()
    print(f"{name}, {shape}: difference {difference:.1e}, same class {agreeing:.3%}")
    if not difference <= TOLERANCE:  # NaN, too
        raise ValueError(
            f"{path}: not written, as its scores for {name} differ from the model's by "
            f"{difference:.1e} of the largest; the limit is {TOLERANCE:g}"
        )


def _default_shape(config: Any, scaling: dict, dynamic: bool) -> Sequence[int]:
    """Return (height, width) of the test's windows, or of photos at its scale."""
    crop = config.get("crop_size") or (512, 512)
    test_cfg, scale = config.model.get("test_cfg") or {}, scaling["scale"]
    if test_cfg.get("mode") == "slide":
        return test_cfg["crop_size"]
    if dynamic or not scale:
        return crop
    if not scaling["keep_ratio"]:
        return scale[::-1]
    short, long = sorted(scale)
    # In (2048, 512) the long side is a limit that few photos reach.
    return short, long if long <= 2 * short else short


def _windows(config: Any, size: tuple[int, int], dynamic: bool) -> dict:
    """Return the `window` (height, width) into which photos are cut, or None, and its `stride`."""
    test_cfg = config.model.get("test_cfg") or {}
    window: Any = None if dynamic else size
    stride = None
    if test_cfg.get("mode") == "slide":
        window = window or tuple(test_cfg["crop_size"])
        if window == tuple(test_cfg["crop_size"]):
            stride = test_cfg["stride"]
    if window and not stride:
        stride = [length - length // 8 for length in window]  # the overlap of `Predictor`'s tiles
    return {"window": window, "stride": stride}


def _inputs(args: argparse.Namespace, size: tuple[int, int], loader: Any, channels: int):
    """Yield named images for the comparison: noise (with --dynamic two sizes) and real images."""
    import cv2
    import numpy as np
    import torch

    from mmseg_ext.images.files import image_files
    from mmseg_ext.inference.export import random_images

    yield "random", random_images(size, 1, channels)
    if args.dynamic:
        other = (size[0] * 3 // 4 + 1, size[1] * 5 // 4 + 3)
        yield "random", random_images(other, 2, channels)
    if not args.images:
        return
    paths = image_files(args.images, recursive=True)[:REAL_IMAGES]
    if not paths:
        raise ValueError(f"--images {args.images}: contains no image; name another folder")
    for path in paths:
        image = loader.transform({"img_path": str(path)})["img"].astype(np.float32)
        if not args.dynamic:
            image = cv2.resize(image, size[::-1])
        image = np.atleast_3d(image)  # H, W, C
        if channels == 3:
            image = image[..., ::-1]  # RGB
        yield path.name, torch.from_numpy(image.transpose(2, 0, 1).copy())[None]  # (1, C, H, W)
