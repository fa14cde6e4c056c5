"""`<family>2mmseg.py SRC DST`: a published weights file to one that mmsegmentation loads."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.checkpoint.safe_reading import read_state_dict
from mmseg_ext.checkpoint.writing import check_suffix, write_weights
from mmseg_ext.published.families import convert_official
from mmseg_ext.published.key_map import StateDict


def convert_file(
    family: str,
    source: str | Path,
    destination: str | Path,
    classifier: bool = False,
    overwrite: bool = False,
) -> StateDict:
    """Read `source`, convert it as `convert_official` does, write and return the result.

    Raises:
        FileNotFoundError, FileExistsError: for a missing source, or an existing destination
            without `overwrite`.
        ValueError: for a file that cannot be read safely, another suffix of the destination, and
            unmapped or missing keys.
    """
    check_suffix(destination)  # before the work
    if Path(destination).exists() and not overwrite:
        raise FileExistsError(f"{destination} exists; --overwrite replaces it")
    converted = convert_official(family, read_state_dict(source), classifier)
    write_weights(converted, destination)
    return converted


def main(
    family: str,
    argv: Sequence[str] | None = None,
    classifier: bool = False,
    segmentor_family: str | None = None,
    where: str = "",
) -> int:
    """The command line of a model converter; the exit status.

    `classifier` offers `--classifier`, for families whose files hold one; `segmentor_family` is the
    family of `--segmentor`, where files of whole segmentors are published too; `where` says where
    the files come from.
    """
    parser = argparse.ArgumentParser(
        description=f"Published weights of the family {family!r} to mmsegmentation's names.",
        epilog=f"Nothing is downloaded. {where}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", help="published weights: .pth, .pth.tar or .safetensors")
    parser.add_argument("dst", help="where to write: .pth or .safetensors")
    parser.add_argument("--overwrite", action="store_true", help="replace dst if it exists")
    either = classifier and segmentor_family is not None
    parts = parser.add_mutually_exclusive_group() if either else parser  # no empty group
    if classifier:
        parts.add_argument(
            "--classifier",
            action="store_true",
            help="keep the classifier, for a backbone built with num_classes",
        )
    if segmentor_family is not None:
        parts.add_argument(
            "--segmentor",
            action="store_const",
            dest="family",
            const=segmentor_family,
            help="keep neck and heads, for the whole segmentor",
        )
    parser.set_defaults(family=family)
    args = parser.parse_args(argv)
    if not Path(args.src).is_file():
        print(f"error: {args.src}: no such checkpoint file. {where}".rstrip(), file=sys.stderr)
        return 1
    try:
        converted = convert_file(
            args.family, args.src, args.dst, classifier and args.classifier, args.overwrite
        )
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    parameters = sum(value.numel() for value in converted.values())
    print(f"{args.dst}: {len(converted)} entries, {parameters / 1e6:.2f} M values")
    return 0
