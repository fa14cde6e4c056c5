"""Check every image and label map of a config before training."""

# `mmseg_ext.check_dataset` reads and counts. This file prints the results. Its docstring is the
# help.

import argparse
import os
import time
from collections import Counter
from pathlib import Path

from mmseg_ext.commands import command, command_parser, config_flag


def parser() -> argparse.ArgumentParser:
    parser = command_parser(
        __doc__,
        """\
Each problem is one line: split, kind, file, values. Exit status: 0 clean, 1 problems, 2 the check
could not run (config or data missing). If the splits of a config share images on purpose, as for
training on trainval, set allow_overlap = True in the config.
""",
    )
    parser.add_argument("config", help="name or path of the config")
    splits = ("train", "val", "test")
    parser.add_argument("--split", nargs="+", choices=splits, help="default: all of the config")
    workers = min(os.cpu_count() or 1, 8)
    parser.add_argument("--workers", type=int, default=workers, help="processes (%(default)s)")
    config_flag(parser)
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    from mmseg_ext.engine.config import load_config
    from mmseg_ext.errors import NotWritten
    from mmseg_ext.own_dataset.check import check_dataset
    from mmseg_ext.own_dataset.preview import PREVIEW, write_preview
    from mmseg_ext.own_dataset.summary import print_splits

    cfg = load_config(args.config, args.cfg_options)
    started = time.perf_counter()
    problems, splits, notes = check_dataset(cfg, args.split, args.workers)
    seconds = time.perf_counter() - started
    for problem in problems:
        print(*problem, sep=": ")
    print_splits(splits)
    for note in notes:
        print(f"note: {note}")
    preview = Path(cfg.filename).parent / PREVIEW
    is_labeled = any(split.pixels.any() for split in splits)
    if preview.is_file() and not args.split and is_labeled:  # a project of `new_project`
        try:
            write_preview(cfg, splits, preview)
            print(f"{preview}: images with their labels")
        except NotWritten as error:  # the check itself needs no folder
            print(f"note: {error}")
    pairs = sum(len(split.items) for split in splits)
    kinds = Counter(problem.kind for problem in problems)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "clean"
    print(f"{pairs:,} pairs in {seconds:.1f} s ({pairs / seconds:.0f} per second): {counted}")
    return int(bool(problems))
