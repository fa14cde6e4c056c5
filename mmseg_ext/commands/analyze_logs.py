"""Plot scalars of training logs over the iterations.

mmsegmentation's tool of that name is not used: it imports seaborn, which nothing installs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands._one_line import one_line
from mmseg_ext.reports.curves import chosen_curves, draw_chosen


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plot scalars of training logs over iterations.")
    parser.add_argument("json_logs", nargs="+", type=Path, help="WORK_DIR/*/vis_data/scalars.json")
    parser.add_argument("--keys", nargs="+", default=["mIoU"], help="scalars to plot")
    parser.add_argument("--legend", nargs="+", help="a name for each curve")
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=Path, default=Path("work_dirs/curves.png"))
    args = parser.parse_args(argv)
    curves = chosen_curves(args.json_logs, args.keys, args.legend, _warn)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw_chosen(curves, args.out, args.title)
    for name, curve in curves.items():
        print(f"{name}: last {curve.values[-1]:g}, least {min(curve.values):g}, ", end="")
        print(f"greatest {max(curve.values):g} of {len(curve.steps)}")
    print(args.out)
    return 0
