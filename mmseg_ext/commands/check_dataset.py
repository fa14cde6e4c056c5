"""Read every image and label map of a config and name each that training would trip over."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from mmengine.registry import init_default_scope
from rich.console import Console

from mmseg_ext import register_all_modules
from mmseg_ext.commands._flags import check_dataset as parser
from mmseg_ext.datasets.dataset_report import check, tables
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import LaunchError

CLEAN, PROBLEMS, COULD_NOT_RUN = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    register_all_modules()
    try:
        return _run(args)
    except (LaunchError, OSError) as error:
        print(f"check_dataset: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    except Exception:  # Python's own status would be 1, which here says that there are problems
        traceback.print_exc()
        return COULD_NOT_RUN


def _run(args: argparse.Namespace) -> int:
    cfg = load_settings(args.config, args.cfg_options)
    init_default_scope(cfg.get("default_scope", "mmseg"))
    started = time.perf_counter()
    problems, summaries = check(cfg, args.split, args.workers)
    seconds = time.perf_counter() - started
    for problem in problems:
        print(problem)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables(summaries):
        console.print(table)
    for summary in summaries:
        if absent := summary.absent():
            print(f"{summary.split}: note: no pixel of {', '.join(absent)}")
    pairs = sum(summary.pairs for summary in summaries)
    kinds = Counter(problem.kind for problem in problems)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "clean"
    print(f"{pairs:,} pairs in {seconds:.1f} s ({pairs / seconds:.0f} per second): {counted}")
    return PROBLEMS if problems else CLEAN
