"""Draw what a model's attention layers look at in images, as PNG panels.

Without CONFIG and CHECKPOINT, the project's own model is used.
"""

import argparse
from pathlib import Path

from mmseg_ext.commands import command, command_parser, config_flag, device_flag, named_model


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("config", nargs="?", help="name or path (default: the project's own model)")
    parser.add_argument("checkpoint", nargs="?", help="file, or 'none' for random weights")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    pixel = "the query position, ROW COLUMN in the image on disk (default: its middle)"
    parser.add_argument("--pixel", nargs=2, type=int, help=pixel)
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="default: last of each kind")
    parser.add_argument("--list", action="store_true", help="print the layers' names and stop")
    parser.add_argument("--out", type=Path, default=Path("work_dirs/attention_maps"))
    device_flag(parser)
    config_flag(parser)
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    import numpy as np
    import torch

    from mmseg_ext.inference.models import list_models
    from mmseg_ext.inspection.attention_pictures import (
        Scene,
        capture_inputs,
        draw_layer,
        find_layers,
        network_input,
        seen_pixel,
        select_layers,
    )

    # Without CONFIG and CHECKPOINT, the parser takes the first images for them.
    words = [word for word in (args.config, args.checkpoint, *args.images) if word]
    if words[0].endswith(".py") or words[0] in list_models():
        if len(words) < 3:
            raise ValueError(f"{words[0]}: name a checkpoint (or 'none') and an image after it")
        args.config, args.checkpoint, images = words[0], words[1], words[2:]
    else:
        args.config = args.checkpoint = None
        images = words
    torch.manual_seed(0)  # for random weights
    model = named_model(args)
    meta = model.dataset_meta
    if args.list:
        for name, layer in find_layers(model).items():
            print(f"{name}  {type(layer).__name__}")
        return 0
    layers = select_layers(model, args.layers)
    stems = [Path(file).stem for file in images]
    if len(set(stems)) < len(stems):
        stems = [f"{i}_{stem}" for i, stem in enumerate(stems)]
    for file, stem in zip(images, stems, strict=True):
        image, shown, original = network_input(model, file)
        pixel = seen_pixel(args.pixel, original, shown.shape[:2])
        height, width = image.shape[2:]  # padded for the network at the right and the bottom
        below, right = height - shown.shape[0], width - shown.shape[1]
        shown = np.pad(shown, [(0, below), (0, right), (0, 0)])
        inputs, labels = capture_inputs(model, layers, image)
        scene = Scene(shown, labels, meta["classes"], meta["palette"], pixel)
        for name, layer in layers.items():
            path = args.out / f"{stem}_{name}.png"
            summary = draw_layer(layer, inputs[name], scene, f"{name}, {Path(file).name}", path)
            print(f"{path}: {summary}")
    return 0
