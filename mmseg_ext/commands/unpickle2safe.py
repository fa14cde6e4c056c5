"""Unpickle a legacy checkpoint once, by hand, to a file that loads without: SRC DST.

Unpickling a file runs whatever its author put there. It is done once, for a file whose source you
trust, and gives a file of tensors and plain containers that loads everywhere without.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.checkpoint.safe_reading import unwrap_state_dict
from mmseg_ext.checkpoint.writing import check_suffix, write_checkpoint, write_weights
from mmseg_ext.errors import CheckpointError


def unpickle_to_safe(source: str | Path, destination: str | Path) -> list[str]:
    """Unpickle `source` (which runs the code in it), write `destination`, return what was left out.

    To `.pth` goes everything that has a plain form, a state to resume from included; to
    `.safetensors` the state dict alone.

    Raises:
        FileNotFoundError, FileExistsError: for a missing source, an existing destination.
        ValueError: for another suffix, or a source without a state dict.
    """
    source, destination = Path(source), Path(destination)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such checkpoint file")
    check_suffix(destination)
    if destination.exists():
        raise FileExistsError(f"{destination} exists; remove it or choose another name")
    dropped: list[str] = []
    plain = to_plain(torch.load(source, map_location="cpu", weights_only=False), "", dropped)
    if destination.suffix == ".safetensors":
        write_weights(unwrap_state_dict(plain, str(source)), destination)
    elif isinstance(plain, dict):
        write_checkpoint(plain, destination)
    else:
        raise ValueError(f"{source}: holds no mapping")
    return dropped


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        description="Convert a checkpoint that only unpickling can read. Unpickling runs the code "
        "that the file's author put there: only for files whose source you trust."
    )
    parser.add_argument("src", help="the legacy checkpoint")
    parser.add_argument("dst", help="where to write: .pth, or .safetensors for the weights alone")
    parser.add_argument("--i-trust-this-file", action="store_true", help="required")
    args = parser.parse_args(argv)
    if not args.i_trust_this_file:
        print(
            f"error: reading {args.src} runs the code in it; if you trust where it comes from, "
            "repeat the command with --i-trust-this-file",
            file=sys.stderr,
        )
        return 1
    try:
        dropped = unpickle_to_safe(args.src, args.dst)
    except (OSError, ValueError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{args.dst}: written" + (f"; left out: {', '.join(dropped)}" if dropped else ""))
    return 0
