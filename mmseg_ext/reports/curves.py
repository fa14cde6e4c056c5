"""Loss and mIoU over the iterations, from the `scalars.json` of mmengine's local backend."""

import io
import json
import math
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#3f7ee8", "#e0602b", "#2a9d6f", "#9166dc", "#b8860b", "#c2417f")
# The page replaces these two by colors for the reader's light or dark setting.
_TEXT, _GRID = "#5b6270", "#e1e4eb"


class Curve(NamedTuple):
    steps: list[int]
    values: list[float]


def read_scalars(text: str) -> tuple[dict[str, Curve], int]:
    """Return every scalar of a `scalars.json` by name, and the number of damaged lines.

    A line is a JSON object with a `step`; a killed run leaves an incomplete one. A value that is
    not finite, or too large to draw, is NaN.
    """
    curves: dict[str, Curve] = {}
    damaged = 0
    for line in text.splitlines():
        try:
            record = json.loads(line)
            step = int(record["step"])
            if abs(step) > 2**53:
                raise OverflowError
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            damaged += 1
            continue
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                curve = curves.setdefault(name, Curve([], []))
                curve.steps.append(step)
                curve.values.append(float(value) if abs(value) < 1e30 else math.nan)
    return curves, damaged


def prediction_loss(curves: dict[str, Curve]) -> Curve:
    """Return the decode head's cross-entropy, which every head has; else the sum of all losses.

    For a head with several losses (DANet's), it is the loss of the prediction. The curve is empty
    if nothing is logged.
    """
    for name, curve in curves.items():  # a head logs the loss of its prediction first
        if name.startswith("decode.") and name.endswith("loss_ce"):
            return curve
    return curves.get("loss", Curve([], []))


def _drawn(curve: Curve) -> Curve:
    """Return at most 2,000 points of the curve, the last one included."""
    every = -(-len(curve.steps) // 2000) or 1
    return Curve(curve.steps[::-every][::-1], curve.values[::-every][::-1])


def curves_figure(runs: dict[str, dict[str, Curve]]) -> Figure:
    """Draw the training loss above the validation mIoU in percent, over the same iterations."""
    figure = Figure(figsize=(4.9, 4.7), layout="constrained")
    loss, miou = figure.subplots(2, 1, sharex=True)
    for i, (name, curves) in enumerate(runs.items()):
        style = {"color": COLORS[i % len(COLORS)], "linewidth": 1.6}
        loss.plot(*_drawn(prediction_loss(curves)), **style)
        steps, values = _drawn(curves.get("mIoU", Curve([], [])))
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
    """Return the figure as SVG for a page that defines the colors `--soft` and `--line`."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        curves_figure(runs).savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return svg.replace(_TEXT, "var(--soft)").replace(_GRID, "var(--line)")
