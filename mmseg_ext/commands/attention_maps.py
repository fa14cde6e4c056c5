"""Draw what a model's attention layers look at in images, as PNG panels.

Without CONFIG and CHECKPOINT, the project's own model is used.
"""

import argparse
from pathlib import Path

from mmseg_ext.commands import (
    CONFIG_SUFFIXES,
    WEIGHTS_SUFFIXES,
    command,
    command_parser,
    config_flag,
    device_flag,
    model_flags,
    named_model,
)


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    model_flags(parser)
    images = parser.add_argument("images", nargs="+", metavar="IMAGE")
    images.required = False  # `main` asks for one, unless --list is set
    pixel = "the query position, ROW COLUMN in the image on disk (default: its middle)"
    parser.add_argument("--pixel", nargs=2, type=int, help=pixel)
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="default: last of each kind")
    names = "print the layers' names and stop; needs no image"
    parser.add_argument("--list", action="store_true", help=names)
    parser.add_argument("--out", type=Path, default=Path("work_dirs/attention_maps"))
    device_flag(parser)
    config_flag(parser)
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    import numpy as np
    import torch

    from mmseg_ext.engine.config import nearest
    from mmseg_ext.images.values import IMAGE_SUFFIXES
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
    words = [word for word in (args.config, args.checkpoint, *(args.images or ())) if word]
    args.config = args.checkpoint = None
    images, order = words, "the order is [CONFIG CHECKPOINT|none] IMAGE [IMAGE ...]"
    if words and (words[0].endswith(CONFIG_SUFFIXES) or words[0] in list_models()):
        args.config, *images = words
        args.checkpoint = "none" if args.list else None  # of which layers are independent
        if images:
            args.checkpoint, *images = images
    for word in images:
        if word == "none" or word.endswith((*CONFIG_SUFFIXES, *WEIGHTS_SUFFIXES)):
            raise ValueError(f"{word}: is no image; {order}")
        if not Path(word).is_file():
            hint = "" if args.config else nearest(word, list_models())
            kinds = "image" if args.config else "image or model"
            raise ValueError(f"{word}: there is no such {kinds}{hint or f'; {order}'}")
    if args.checkpoint and Path(args.checkpoint).suffix.lower() in IMAGE_SUFFIXES:
        raise ValueError(f"{args.checkpoint}: is an image, not a checkpoint; {order}")
    if not images and not args.list:
        raise ValueError(f"{' '.join(words) or 'attention_maps'}: no image is named; {order}")
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
