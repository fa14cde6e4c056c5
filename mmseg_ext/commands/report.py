"""Write what one or several runs recorded on one HTML page."""

import sys
from collections.abc import Sequence

from mmseg_ext.commands import exit_on_error
from mmseg_ext.commands._flags import report as parser
from mmseg_ext.reports.page import write_report


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    path = args.out or args.work_dirs[0] / "report.html"
    runs = write_report(args.work_dirs, path)
    for note in (note for run in runs for note in run.notes):
        print(f"warning: {note}", file=sys.stderr)
    for run in (run for run in runs if run.results):
        result = f"mIoU {100 * run.results.miou:.2f} % on {run.results.images} images"
        print(f"{run.name}: {result} ({run.results.source})")
    print(path)
    return 0
