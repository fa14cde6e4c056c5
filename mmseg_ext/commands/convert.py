"""Convert published weights to mmsegmentation's names: FAMILY SRC DST."""

import argparse
from pathlib import Path

from mmseg_ext.commands import command, command_parser
from mmseg_ext.converters import FAMILIES, family_cfg


def parser() -> argparse.ArgumentParser:
    epilog = "The command downloads nothing. If SRC is missing, it prints where the file is."
    parser = command_parser(__doc__, epilog)
    families = f"one of {', '.join(FAMILIES)}"
    parser.add_argument("family", choices=FAMILIES, metavar="FAMILY", help=families)
    parser.add_argument("src", help="published weights: .pth, .pth.tar or .safetensors")
    parser.add_argument("dst", type=Path, help="file to write: .pth or .safetensors")
    parser.add_argument("--classifier", action="store_true", help="keep the classifier")
    parser.add_argument("--overwrite", action="store_true", help="replace DST if it exists")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.checkpoint import convert_official
    from mmseg_ext.checkpoint.files import (
        read_checkpoint,
        terms_of,
        unwrap_state_dict,
        write_weights,
    )
    from mmseg_ext.errors import format_error, one_line

    cfg = family_cfg(args.family)
    if not Path(args.src).is_file():
        hint = f"{args.family}: {cfg['source']}"
        if args.dst.is_file():
            hint = "the order is FAMILY SRC DST, and DST exists"
        raise FileNotFoundError(f"{args.src}: no such checkpoint file; {hint}")
    if args.dst.exists() and not args.overwrite:
        raise FileExistsError(f"{args.dst}: the file exists; add --overwrite to replace it")
    content = read_checkpoint(args.src)
    weights = unwrap_state_dict(content, args.src)
    try:
        converted = convert_official(args.family, weights, args.classifier)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # Shapes that no file of the family has can fail in any way.
        reason = one_line(error) if isinstance(error, ValueError) else format_error(error)
        raise ValueError(f"{args.src}: cannot be converted as {args.family}: {reason}") from error
    about = terms_of({"meta": cfg}) | terms_of(content)
    write_weights(converted, args.dst, about=about, source=args.src)
    values = sum(value.numel() for value in converted.values())
    print(f"{args.dst}: {len(converted)} entries, {values / 1e6:.2f} M values")
    size, mean, std = cfg["input_size"][1], cfg["mean"], cfg["std"]
    print(f"trained on images of {size} pixels, mean {mean}, std {std}")
    print(f"license: {cfg['license'] or 'none stated'}")
