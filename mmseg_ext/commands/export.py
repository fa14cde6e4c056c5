"""Export a segmentor to ONNX; compare the file with the model."""

import argparse
from pathlib import Path

from mmseg_ext.commands import command, command_parser, model_flags, named_model


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    model_flags(parser)
    parser.add_argument("--dynamic", action="store_true", help="images of any size and number")
    shape = "H [W] (default: the test's window or scale)"
    parser.add_argument("--shape", type=int, nargs="+", help=shape)
    parser.add_argument("--images", type=Path, help="image or folder, to compare real images, too")
    parser.add_argument("--out", type=Path, help="output file (default: the config's name)")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.inference.export import check_target, export
    from mmseg_ext.terminal import plain_warnings

    check_target(args.out, args.shape)  # before the model is built
    model = named_model(args)
    # The exporter prints nothing meanwhile. Measured for 3 M parameters: 51 and 11 seconds.
    usual = "two minutes" if args.dynamic else "half a minute"
    print(f"exporting, which usually takes less than {usual}", flush=True)
    with plain_warnings():
        result = export(
            model,
            out=args.out,
            dynamic=args.dynamic,
            shape=args.shape,
            images=args.images,
        )
    for note in result.notes:
        print(note)
    for each in result.compared:
        shape = "x".join(map(str, each.shape))
        line = f"difference {each.difference:.1e}, same class {each.agreeing:.3%}"
        if each.used is not None:
            line += f"; for the unchanged photo, the labels of image_demo {each.used:.2%}"
        print(f"{each.name}, {shape}: {line}")
    print(f"{result.path}: {result.path.stat().st_size / 1e6:.1f} MB")
