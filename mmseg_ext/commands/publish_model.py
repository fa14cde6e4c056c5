"""Write the weights of a training checkpoint as a file to give to others.

mmsegmentation's `publish_model.py` is not used: it reads by `torch.load`, which since torch 2.6
refuses mmengine's training checkpoints, strips the characters of '.pth' from the name's end
('depth.pth' becomes 'de'), names the file by the hash of the input, and does not wait for its `mv`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mmseg_ext.checkpoint.safe_reading import read_checkpoint, unwrap_state_dict
from mmseg_ext.checkpoint.writing import check_suffix, write_weights


def publish(source: str | Path, destination: str | Path) -> Path:
    """Write the weights of `source` as `destination`, eight digits of the hash in its name.

    The optimizer, the schedule, the message hub and the config (paths and machine names) stay
    behind; the classes and the palette go along, in a `.safetensors` as its metadata.

    Raises:
        FileNotFoundError: for a destination in a folder that is not there, or no `source`.
        ValueError: for another suffix than `.pth` or `.safetensors`, or no state dict in `source`.
    """
    destination = Path(destination)
    check_suffix(destination)
    if not destination.parent.is_dir():
        raise FileNotFoundError(f"{destination}: there is no folder {destination.parent}")
    content = read_checkpoint(source)
    weights = unwrap_state_dict(content, str(source))
    meta = content.get("meta") if isinstance(content.get("meta"), dict) else {}
    dataset_meta = json.loads(json.dumps(meta.get("dataset_meta"), default=np.ndarray.tolist))
    return write_weights(weights, destination, dataset_meta, hash_in_name=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of `tools/misc/publish_model.py`."""
    parser = argparse.ArgumentParser(
        description="Write the weights of a training checkpoint as a file to give to others."
    )
    parser.add_argument("in_file", help="training checkpoint")
    parser.add_argument("out_file", help="NAME.pth or NAME.safetensors; the hash joins the name")
    args = parser.parse_args(argv)
    try:
        print(publish(args.in_file, args.out_file))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
