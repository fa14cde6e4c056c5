"""Read every image and label map of a config and name each that training would trip over."""

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import init_default_scope
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmseg_ext import register_all_modules
from mmseg_ext.atomic_write import write_text
from mmseg_ext.datasets.check.pairs import SPLITS, Split, check
from mmseg_ext.datasets.check.report import (
    absent_classes,
    draw_overlays,
    print_summaries,
    to_json,
)
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import CannotCheckError, LaunchError

CLEAN, PROBLEMS, COULD_NOT_RUN = 0, 1, 2

EPILOG = """\
Each problem is one line: split, kind, file, values. Exit status: 0 clean, 1 problems, 2 the check
could not run (no such config, data not there). A config whose splits share images on purpose, as
training on trainval does, says allow_overlap = True.
"""


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    result = argparse.ArgumentParser(
        prog="check_dataset.py",
        description="Read every image and label map that a config's dataloaders will read, and "
        "report what is wrong with them",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("config", help="path of the config")
    result.add_argument("--split", nargs="+", choices=SPLITS, help="by default all of the config")
    result.add_argument(
        "--workers",
        type=int,
        default=min(os.cpu_count() or 1, 8),
        help="processes that read, 0 for this one (default: the CPU's cores, at most 8)",
    )
    result.add_argument("--json", type=Path, metavar="OUT", help="write the result as JSON")
    result.add_argument(
        "--overlays",
        type=Path,
        metavar="OUT",
        help="where a picture of a few label maps over their images goes "
        "(default: work_dirs/<config's name>/check_dataset.png)",
    )
    result.add_argument(
        "--cfg-options",
        nargs="+",
        action=ConfigOptions,
        metavar="KEY=VALUE",
        help="override settings",
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` is by default the process's. Returns the exit status."""
    args = parser().parse_args(argv)
    register_all_modules()
    try:
        if args.workers < 0:
            raise CannotCheckError(f"--workers must be 0 or more, not {args.workers}")
        return _run(args, _load(args.config, args.cfg_options))
    except (CannotCheckError, OSError) as error:
        print(f"check_dataset: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    except Exception:  # Python's own status would be 1, which here says that there are problems
        traceback.print_exc()
        return COULD_NOT_RUN


def _load(path: str, options: dict | None) -> Config:
    try:
        cfg = load_settings(path, options)
    except LaunchError as error:
        raise CannotCheckError(str(error)) from error
    init_default_scope(cfg.get("default_scope", "mmseg"))
    return cfg


def _run(args: argparse.Namespace, cfg: Config) -> int:
    errors = Console(stderr=True)
    started = time.perf_counter()
    with Progress(
        TextColumn("reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("pairs"),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)

        def show_total(splits: Sequence[Split]) -> None:
            nonlocal started
            started = time.perf_counter()  # the files are listed: now they are read
            bar.update(task, total=sum(len(p.pairs) for s in splits for p in s.parts))

        splits, problems, summaries = check(
            cfg, args.split, args.workers, lambda pairs: bar.advance(task, pairs), show_total
        )
    seconds = time.perf_counter() - started

    for problem in problems:
        print(problem)
    print_summaries(summaries, Console(width=None if sys.stdout.isatty() else 160))
    for split, summary in zip(splits, summaries, strict=True):
        if split.aliases:
            print(f"{', '.join(split.aliases)}: reads the same as {split.name}")
        if summary.tagged:
            print(
                f"{split.name}: note: {summary.tagged} images carry an EXIF orientation, which is "
                "not applied: image and label map are read as they are stored"
            )
        absent = absent_classes(summary)
        if absent:
            print(f"{split.name}: note: no pixel of {', '.join(absent)}")
    picture = args.overlays or Path("work_dirs", Path(args.config).stem, "check_dataset.png")
    if draw_overlays(splits, problems, picture):
        print(f"label maps over their images: {picture}")
    if args.json:
        write_text(to_json(args.config, splits, problems, summaries), args.json)
    pairs = sum(summary.pairs for summary in summaries)
    kinds = Counter(problem.kind for problem in problems)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "clean"
    print(f"{pairs:,} pairs in {seconds:.1f} s ({pairs / seconds:.0f} per second): {counted}")
    return PROBLEMS if problems else CLEAN
