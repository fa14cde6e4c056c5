"""Write the weights of a training checkpoint to a small file: IN OUT.

mmsegmentation's `publish_model.py` calls `torch.load`, which since torch 2.6 refuses mmengine's
training checkpoints, and it shortens names (`depth.pth` becomes `de`).
"""

import argparse

from mmseg_ext.commands import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("in_file", help="training checkpoint")
    parser.add_argument("out_file", help="NAME.pth or NAME.safetensors; a hash is appended to NAME")
    parser.add_argument("--float16", action="store_true", help="halve the size")
    parser.add_argument("--no-hash", action="store_true", help="do not change the name")
    parser.add_argument("--about", nargs="+", default=[], metavar="KEY=TEXT", help="extra metadata")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    """Write the weights, the classes, the palette and the license of weights they started from.

    Nothing else is written, because configs contain machine names.

    mmengine, `init_model` and `MMSegInferencer` read a `.pth`; a `.safetensors` needs
    `mmseg_ext.safe_loading()`.
    """
    from mmseg_ext.checkpoint.files import (
        classes_of,
        read_checkpoint,
        terms_of,
        unwrap_state_dict,
        write_weights,
    )
    from mmseg_ext.terminal import plain_warnings

    pairs = [pair.partition("=") for pair in args.about]
    if not all(key and equals for key, equals, _ in pairs):
        raise ValueError(f"--about: needs KEY=TEXT, not {args.about}")
    content = read_checkpoint(args.in_file)
    about = terms_of(content) | {key: text for key, _, text in pairs}
    weights = unwrap_state_dict(content, args.in_file)
    if args.float16:
        for name, value in list(weights.items()):
            if name.endswith("num_batches_tracked"):  # which load strictly without it
                del weights[name]
            elif value.is_floating_point():
                weights[name] = value.half()
        beyond = [name for name, value in weights.items() if not value.isfinite().all()]
        if beyond:
            raise ValueError(f"{args.in_file}: values beyond float16 in {', '.join(beyond[:4])}")
    with plain_warnings():
        dataset_meta = classes_of(content, args.in_file)
    hashed = not args.no_hash
    print(write_weights(weights, args.out_file, dataset_meta, hashed, about, args.in_file))
