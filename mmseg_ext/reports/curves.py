"""Loss and mIoU over the iterations, from the `scalars.json` of the local visualisation backend."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#3f7ee8", "#e0602b", "#2a9d6f", "#9166dc", "#b8860b", "#c2417f")
# In the page these two become the reader's colours, light or dark.
_TEXT, _GRID = "#5b6270", "#e1e4eb"


class Curve(NamedTuple):
    steps: list[int]
    values: list[float]


def read_scalars(path: Path, warn: Callable[[str], None] | None = None) -> dict[str, Curve]:
    """Every scalar of a `scalars.json` (one JSON object a line), by name.

    Lines that a killed run has cut are left out; `warn` is called with how many.

    Raises:
        ValueError: if the file holds no line with a `step`.
    """
    curves: dict[str, Curve] = {}
    damaged = 0
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path}: there is no such file")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
            step = int(record["step"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            damaged += 1
            continue
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                curve = curves.setdefault(name, Curve([], []))
                curve.steps.append(step)
                curve.values.append(value)
    if not curves:
        raise ValueError(f"{path} holds no scalars")
    if damaged and warn is not None:
        warn(f"{path}: {damaged} damaged lines are left out")
    return curves


def prediction_loss(curves: dict[str, Curve]) -> Curve:
    """The decode head's cross-entropy, the same quantity in every head; else the whole loss.

    Of a head with several (DANet's), that of its prediction. Empty where nothing is logged.
    """
    for name, curve in curves.items():  # a head logs the loss of its prediction first
        if name.startswith("decode.") and name.endswith("loss_ce"):
            return curve
    return curves.get("loss", Curve([], []))


def curves_figure(runs: dict[str, dict[str, Curve]]) -> Figure:
    """Training loss above validation mIoU in percent, on one axis of iterations."""
    figure = Figure(figsize=(4.9, 4.7), layout="constrained")
    loss, miou = figure.subplots(2, 1, sharex=True)
    for i, (name, curves) in enumerate(runs.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "linewidth": 1.6}
        loss.plot(*prediction_loss(curves), **style)
        steps, values = curves.get("mIoU", Curve([], []))
        label = f"{name} {values[-1]:.1f}" if values else name
        miou.plot(steps, values, marker="o", markersize=4, label=label, **style)
    loss.set_title("Training loss (cross-entropy)", fontsize=10, color=_TEXT)
    loss.set_ylim(bottom=0)
    miou.set_title("Validation mIoU, %", fontsize=10, color=_TEXT)
    miou.set_ylim(0, 100)
    miou.set_xlim(left=0)
    miou.set_xlabel("iteration", color=_TEXT)
    miou.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for text in miou.legend(frameon=False, labelcolor=_TEXT).get_texts():
        text.set_parse_math(False)
    for axes in (loss, miou):
        axes.grid(color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=_TEXT, length=0)
        axes.spines[:].set_visible(False)
    return figure


def curves_svg(runs: dict[str, dict[str, Curve]]) -> str:
    """The figure as SVG for a page that defines the colours `--soft` and `--line`."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        curves_figure(runs).savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return svg.replace(_TEXT, "var(--soft)").replace(_GRID, "var(--line)")
