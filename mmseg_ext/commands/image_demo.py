"""Segment an image, a folder or a video; write label maps and overlays.

Without CONFIG and CHECKPOINT, the project's own model is used: an EANet that finds the nuclei in
microscopy images.
"""

import argparse
import sys
from pathlib import Path

from mmseg_ext.commands import command, command_parser, device_flag, model_flags, named_model
from mmseg_ext.errors import join_names


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
    limit = "skip larger images (default: those that need more than about 2 GiB)"
    parser.add_argument("--max-pixels", type=int, help=limit)
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
    least = (
        "pixels of an object (default: the config's `min_area`, at least 16 of the network's input)"
    )
    parser.add_argument("--min-area", type=float, help=least)
    square = "the same in square micrometers, with --pixel-size"
    parser.add_argument("--min-area-um2", type=float, metavar="A", help=square)
    names = "that are drawn and counted (default: all but background and border)"
    parser.add_argument("--classes", nargs="+", metavar="NAME", help=names)
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    device_flag(parser)
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    from mmseg_ext.inference.prediction import FORMATS, MAX_PIXELS, predict
    from mmseg_ext.terminal import plain_warnings

    model = named_model(args)
    for about, text in model.terms.items():
        print(f"{about} (weights): {text}")
    with plain_warnings():
        results = predict(
            args.input,
            model,
            out=args.out,
            recursive=args.recursive,
            pages=args.pages,
            formats=[name for name in FORMATS if getattr(args, name)],
            classes=args.classes,
            min_area=args.min_area,
            min_area_um2=args.min_area_um2,
            pixel_size=args.pixel_size,
            confidence=args.confidence,
            frame_labels=args.frame_labels,
            opacity=args.opacity,
            with_labels=args.with_labels,
            max_pixels=MAX_PIXELS if args.max_pixels is None else args.max_pixels,
            tile=args.tile,
            value_range=args.value_range,
            amp=args.amp,
        )
    print(f"{results.done} {results.kind} segmented into {args.out}")
    if args.checkpoint == "none":
        print("warning: random weights: the labels are meaningless", file=sys.stderr)
    if results.small:
        print(f"left out: {results.small} objects smaller than --min-area; --min-area 0 keeps them")
    if results.unplaced:
        text = "declares no EPSG code or no transform, and so does its GeoJSON; gdalwarp adds both"
        print(f"warning: {join_names(results.unplaced)}: {text}", file=sys.stderr)
    return int(results.failed > 0)
