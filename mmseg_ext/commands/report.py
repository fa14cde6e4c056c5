"""Write what one or several runs recorded on one HTML page."""

import argparse
import sys
from pathlib import Path

from mmseg_ext.commands import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__, "Nothing in a WORK_DIR is executed without --evaluate.")
    parser.add_argument("work_dirs", nargs="+", type=Path, metavar="WORK_DIR")
    parser.add_argument("--out", type=Path, help="default: report.html in the first WORK_DIR")
    parser.add_argument("--csv", action="store_true", help="also write the scores, in percent")
    parser.add_argument("--latex", action="store_true", help="also write them as .tex, of booktabs")
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="first test the best checkpoint of each WORK_DIR; this also shows classes, confusion "
        "and images of runs that mmsegmentation trained",
    )
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.reports.page import report

    runs, files = report(args.work_dirs, args.out, args.csv, args.latex, args.evaluate)
    for run in runs:
        for note in run.notes:
            print(f"warning: {note}", file=sys.stderr)
    for run in runs:
        results = run.results
        if results is not None:
            score = f"mIoU {100 * results.miou:.2f} % on {results.images_of}"
            if run.augmented is not None:
                score += f", {100 * run.augmented.miou:.2f} % with test-time augmentation"
            print(f"{run.name}: {score} ({results.source})")
    for file in files:
        print(file)
