"""The command line of `tools/analysis_tools/analyze_logs.py`.

mmsegmentation's tool of that name is not used: it imports seaborn, which nothing installs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from mmseg_ext.reports.curves import COLOURS, Curve, read_scalars


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plot scalars of training logs over iterations.")
    parser.add_argument("json_logs", nargs="+", type=Path, help="WORK_DIR/*/vis_data/scalars.json")
    parser.add_argument("--keys", nargs="+", default=["mIoU"], help="scalars to plot")
    parser.add_argument("--legend", nargs="+", help="a name for each curve")
    parser.add_argument("--title")
    parser.add_argument("--out", type=Path, default=Path("curves.png"))
    args = parser.parse_args(argv)
    try:
        curves = chosen_curves(args.json_logs, args.keys, args.legend)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        marker = "o" if len(curve.steps) < 30 else ""
        axes.plot(*curve, label=name, marker=marker, color=COLOURS[i % len(COLOURS)])
        print(f"{name}: last {curve.values[-1]:g}, least {min(curve.values):g}, ", end="")
        print(f"greatest {max(curve.values):g} of {len(curve.steps)}")
    axes.set_xlabel("iteration")
    axes.set_title(args.title or "")
    axes.legend()
    figure.savefig(args.out, dpi=150)
    print(args.out)
    return 0


def chosen_curves(
    logs: Sequence[Path], keys: Sequence[str], legend: Sequence[str] | None = None
) -> dict[str, Curve]:
    """The curves of `keys` in each log, by `legend` or by log and key.

    Raises:
        ValueError: for a key that a log lacks, or a legend of another length.
    """
    names = list(legend or (f"{log}_{key}" for log in logs for key in keys))
    if len(names) != len(logs) * len(keys) or len(set(names)) != len(names):
        raise ValueError(f"legend must hold {len(logs) * len(keys)} different names, not {names}")
    found = []
    for log in logs:
        scalars = read_scalars(log)
        for key in keys:
            if key not in scalars:
                raise ValueError(f"{log} holds no {key!r}, but {', '.join(sorted(scalars))}")
            found.append(scalars[key])
    return dict(zip(names, found, strict=True))
