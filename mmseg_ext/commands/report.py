"""Write what one or several runs recorded on one HTML page."""

import argparse
import sys
from pathlib import Path

from mmseg_ext.commands import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__, "Nothing in a WORK_DIR is executed.")
    parser.add_argument("work_dirs", nargs="+", type=Path, metavar="WORK_DIR")
    parser.add_argument("--out", type=Path, help="default: report.html in the first WORK_DIR")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.reports.page import write_report

    path = args.out or args.work_dirs[0] / "report.html"
    runs = write_report(args.work_dirs, path)
    for run in runs:
        for note in run.notes:
            print(f"warning: {note}", file=sys.stderr)
    for run in runs:
        results = run.results
        if results is not None:
            score = f"mIoU {100 * results.miou:.2f} % on {results.images} images"
            print(f"{run.name}: {score} ({results.source})")
    print(path)
