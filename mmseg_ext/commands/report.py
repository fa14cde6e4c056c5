"""Write what one or several runs recorded on one HTML page."""

import argparse
import shlex
import subprocess
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
    from mmseg_ext.atomic_write import write_text
    from mmseg_ext.reports.page import page, read_runs, scores_text

    if args.evaluate:
        for work_dir in args.work_dirs:
            _evaluate(work_dir)
    runs, path = read_runs(args.work_dirs), args.out or args.work_dirs[0] / "report.html"
    written = {path: page(runs)}
    for suffix, is_wanted in ((".csv", args.csv), (".tex", args.latex)):
        if is_wanted:
            written[path.with_suffix(suffix)] = scores_text(runs, suffix)
    for run in runs:
        for note in run.notes:
            print(f"warning: {note}", file=sys.stderr)
    for run in runs:
        results = run.results
        if results is not None:
            score = f"mIoU {100 * results.miou:.2f} % on {results.images} images"
            if run.augmented is not None:
                score += f", {100 * run.augmented.miou:.2f} % with test-time augmentation"
            print(f"{run.name}: {score} ({results.source})")
    for file, text in written.items():
        write_text(text, file)
        print(file)


def _evaluate(work_dir: Path) -> None:
    """Test the best checkpoint of a run in a separate process; its results stay in WORK_DIR."""
    from mmseg_ext.reports.run_data import read_run

    run = read_run(work_dir)
    if run.config_file is None or run.checkpoint is None:
        raise ValueError(f"{work_dir}: --evaluate needs a config (*.py) and a checkpoint (*.pth)")
    words = [str(run.config_file), str(run.checkpoint), "--work-dir", str(work_dir)]
    if subprocess.run([sys.executable, "-m", "mmseg_ext", "test", *words]).returncode:
        raise ValueError(f"{work_dir}: the test failed; run: mmseg-ext test {shlex.join(words)}")
