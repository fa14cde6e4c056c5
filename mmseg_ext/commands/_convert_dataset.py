"""What the dataset converters' command lines share."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mmseg_ext.errors import ConversionError


def converter_parser(description: str, where: str) -> argparse.ArgumentParser:
    """A parser with the flags of every converter; `where` says where the data come from."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=where,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--nproc",
        type=_workers,
        default=min(os.cpu_count() or 1, 8),
        help="processes, 0 for this one (default: the CPU's cores, at most 8)",
    )
    parser.add_argument(
        "--allow-partial",
        action="store_true",
        help="take a subset: do not require the published numbers of images",
    )
    return parser


def _workers(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text!r}")
    return int(text)


def run(convert: Callable[[], Mapping[str, int]], destination: Path) -> int:
    """Convert and print the number of pairs of each split. Returns the exit status."""
    try:
        counts = convert()
    except (ConversionError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    found = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print(f"{destination}: {found}; every pair was read")
    return 0
