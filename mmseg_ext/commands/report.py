"""Test the weights of one or several runs and write all about them on one HTML page."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext import register_all_modules
from mmseg_ext.commands._one_line import one_line
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.reports.html_page import write_report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="One HTML page about one or several runs.")
    parser.add_argument("work_dirs", nargs="+", type=Path, metavar="WORK_DIR")
    parser.add_argument("--out", type=Path, help="default: report.html in the first WORK_DIR")
    parser.add_argument("--limit", type=int, help="test on the first images only")
    parser.add_argument("--examples", type=int, default=2, help="best, median, worst: each (2)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--import",
        nargs="+",
        default=[],
        dest="modules",
        metavar="MODULE",
        help="modules that register your own classes; those that a config names are not imported",
    )
    parser.add_argument("--cfg-options", nargs="+", action=ConfigOptions, help="key=value ...")
    return parser


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    """Test each run's weights and write the page; the exit status."""
    args = _parser().parse_args(argv)
    path = args.out or args.work_dirs[0] / "report.html"
    register_all_modules()
    for module in args.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"--import {module}: {error}") from error
    runs = write_report(
        args.work_dirs,
        path,
        limit=args.limit,
        examples=args.examples,
        device=args.device,
        options=args.cfg_options,
    )
    for note in (note for run in runs for note in run.notes):
        print(f"warning: {note}", file=sys.stderr)
    for run in runs:
        print(f"{run.name}: mIoU {100 * run.miou:.2f} % on {run.images} images")
    print(path)
    return 0
