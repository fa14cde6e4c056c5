"""Draw what a model's attention layers look at in images, as PNG panels."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmcv.transforms import Compose
from mmengine.registry import init_default_scope
from torch import Tensor, nn

from mmseg_ext.commands._one_line import one_line
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.datasets.metainfo import classes_and_palette, unwrapped
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.engine.load_trained import load_trained
from mmseg_ext.inference.predictor import image_pipeline
from mmseg_ext.inspection.attention_pictures import Scene, draw_layer
from mmseg_ext.inspection.attention_views import attention_layers, captured_inputs, chosen_layers


def unique_names(paths: Sequence[str]) -> list[str]:
    """A name for each image's results: its stem, or as much of its path as no two share."""
    parts = [Path(path).parts for path in dict.fromkeys(paths)]
    names = [Path(part[-1]).stem for part in parts]
    for length in range(1, max(map(len, parts)) + 1):
        if len(set(names)) == len(names):
            break
        names = ["_".join(part[-length:]).strip("/") for part in parts]
    return names


def seen_pixel(
    pixel: Sequence[int] | None, original: tuple[int, int], seen: tuple[int, int]
) -> tuple[int, int]:
    """Where a pixel (row, column) of an image lies in the resized one; by default the middle.

    Raises:
        ValueError: for a pixel outside the image.
    """
    pixel = pixel or [n // 2 for n in original]
    if any(not 0 <= p < n for p, n in zip(pixel, original, strict=True)):
        raise ValueError(
            f"--pixel must lie inside the image of {original[0]} rows and {original[1]} columns, "
            f"not at {tuple(pixel)}"
        )
    return tuple((2 * p + 1) * s // (2 * n) for p, n, s in zip(pixel, original, seen, strict=True))


def _network_input(
    model: nn.Module, path: str, pixel: Sequence[int] | None
) -> tuple[Tensor, np.ndarray, tuple[int, int]]:
    """The normalised image (1, 3, H, W) of a test, what it shows as RGB (H, W, 3), the query."""
    pipeline = Compose(image_pipeline(unwrapped(model.cfg.test_dataloader.dataset)["pipeline"]))
    sample = pipeline({"img_path": path, "reduce_zero_label": False})
    shown = sample["inputs"].permute(1, 2, 0).numpy()
    original = sample["data_samples"].metainfo["ori_shape"]
    query = seen_pixel(pixel, original, shown.shape[:2])
    batch = {"inputs": [sample["inputs"]], "data_samples": [sample["data_samples"]]}
    image = model.data_preprocessor(batch, False)["inputs"]
    if image.shape[2:] != shown.shape[:2]:  # padded for the network
        space = [(0, n - m) for n, m in zip(image.shape[2:], shown.shape[:2], strict=True)]
        shown = np.pad(shown, [*space, (0, 0)])
    return image, shown[..., ::-1], query  # mmcv reads BGR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What a model attends to, as PNG panels.")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="weights; 'none' for random ones")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument(
        "--pixel",
        nargs=2,
        type=int,
        metavar=("ROW", "COLUMN"),
        help="the query, in the image as it is on disk (default: its middle)",
    )
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="default: last of each kind")
    parser.add_argument("--list", action="store_true", help="print the layers' names and stop")
    parser.add_argument("--out", default="work_dirs/attention_maps", help="output folder")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--cfg-options", nargs="+", action=ConfigOptions, help="key=value ...")
    return parser


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    config = load_settings(args.config, args.cfg_options)
    init_default_scope(config.get("default_scope", "mmseg"))
    checkpoint = None if args.checkpoint == "none" else args.checkpoint
    torch.manual_seed(0)
    model, meta = load_trained(config, checkpoint)
    model.to(usable_device(args.device))
    if args.list:
        for name, layer in attention_layers(model).items():
            print(f"{name}  {type(layer).__name__}")
        return 0
    layers = chosen_layers(model, args.layers)
    if len(meta["classes"]) != model.num_classes:
        raise ValueError(f"the model has {model.num_classes} classes, not {len(meta['classes'])}")
    palette = meta.get("palette") or classes_and_palette(config.test_dataloader.dataset)["palette"]
    out = Path(args.out)
    for file, stem in zip(dict.fromkeys(args.images), unique_names(args.images), strict=True):
        image, shown, pixel = _network_input(model, file, args.pixel)
        inputs, labels = captured_inputs(model, layers, image)
        scene = Scene(shown, labels, meta["classes"], palette, pixel)
        for name, layer in layers.items():
            path = out / f"{stem}_{name}.png"
            said = draw_layer(layer, inputs[name], scene, f"{name}, {Path(file).name}", path)
            print(f"{path}: {said}")
    return 0
