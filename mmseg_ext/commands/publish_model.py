"""Write the weights of a training checkpoint to a small file for publication: IN OUT.

mmsegmentation's `publish_model.py` calls `torch.load`, which since torch 2.6 refuses mmengine's
training checkpoints, and it shortens names (`depth.pth` becomes `de`).
"""

import argparse
import json
from pathlib import Path

from mmseg_ext.commands._flags import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("in_file", help="training checkpoint")
    parser.add_argument("out_file", help="NAME.pth or NAME.safetensors; a hash is appended to NAME")
    parser.add_argument("--float16", action="store_true", help="halve the size")
    parser.add_argument("--no-hash", action="store_true", help="do not change the name")
    parser.add_argument("--about", nargs="+", default=[], metavar="KEY=TEXT", help="extra metadata")
    return parser


def publish(
    source: str | Path,
    destination: str | Path,
    float16: bool = False,
    about: dict[str, str] | None = None,
    hash_in_name: bool = True,
) -> Path:
    """Write the weights of `source` to `destination`, and return the path of the file.

    The file keeps the classes and the palette. It drops the optimizer, the schedule, the message
    hub and the config, which contains paths and machine names. mmengine, `init_model` and
    `MMSegInferencer` read a `.pth`; a `.safetensors` needs `mmseg_ext.safe_loading()`.

    Args:
        float16: halve the file, and leave out the batch counters. It still loads strictly.
        about: further metadata, by name.
        hash_in_name: append eight digits of the file's SHA-256 to its name.

    Raises:
        FileNotFoundError: if `source` or the folder of `destination` does not exist.
        ValueError: for another suffix than `.pth` or `.safetensors`, no state dict in `source`, or
            values beyond float16.
    """
    import numpy as np

    from mmseg_ext.checkpoint.files import read_checkpoint, unwrap_state_dict, write_weights

    destination = Path(destination)
    if not destination.parent.is_dir():
        raise FileNotFoundError(f"{destination}: the folder {destination.parent} does not exist")
    content = read_checkpoint(source)
    weights = unwrap_state_dict(content, str(source))
    if float16:
        weights = {
            name: value.half() if value.is_floating_point() else value
            for name, value in weights.items()
            if not name.endswith("num_batches_tracked")
        }
        beyond = [name for name, value in weights.items() if not value.isfinite().all()]
        if beyond:
            raise ValueError(f"{source}: values beyond float16 in {', '.join(beyond[:4])}")
    meta = content.get("meta") if isinstance(content.get("meta"), dict) else {}
    dataset_meta = json.loads(json.dumps(meta.get("dataset_meta"), default=np.ndarray.tolist))
    return write_weights(weights, destination, dataset_meta, hash_in_name, about)


@command(parser)
def main(args: argparse.Namespace) -> None:
    pairs = [pair.partition("=") for pair in args.about]
    if not all(key and equals for key, equals, _ in pairs):
        raise ValueError(f"--about: needs KEY=TEXT, not {args.about}")
    about = {key: text for key, _, text in pairs}
    print(publish(args.in_file, args.out_file, args.float16, about, not args.no_hash))
