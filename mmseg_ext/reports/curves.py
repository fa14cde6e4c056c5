"""Loss, mIoU and learning rate over the iterations, from mmengine's `scalars.json`.

`read_scalars` reads the file, `cross_entropy` selects the loss that is comparable between heads,
and `curves_svg` draws the curves of several runs.
"""

import io
import itertools
import json
import math
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#3f7ee8", "#e0602b", "#2a9d6f", "#9166dc", "#b8860b", "#c2417f")
# The page replaces these two by colors for the reader's light or dark setting.
_TEXT, _GRID = "#5b6270", "#e1e4eb"
_STYLE: dict[Any, Any] = {
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "none",
    "grid.color": _GRID,
    "axes.titlesize": "medium",
    "legend.frameon": False,
    "text.parse_math": False,  # a name may contain $
    "svg.fonttype": "none",
    "svg.hashsalt": "curves",
}


Curve = dict[int, float]  # value by iteration


def read_scalars(text: str, start: int = 0) -> tuple[dict[str, Curve], list[str]]:
    """Return every scalar of a `scalars.json` by name, and notes of what the file lacks.

    A line is a JSON object with a `step`; a killed run leaves an incomplete one. A value that is
    not finite, or too large to draw, is NaN. With `log_metric_by_epoch`, the default of mmengine's
    `LoggerHook`, the `step` of a validation counts epochs, and stays 0 in a loop of iterations. The
    curves have its iteration.

    Args:
        text: the content of the file.
        start: the iteration at which the file begins.
    """
    records: list[dict[str, Any]] = []
    damaged, done, by_epoch = 0, start, False
    first: dict[int, int] = {}  # iteration that each epoch logs first
    for line in text.splitlines():
        try:
            record = json.loads(line)
            record["step"] = step = int(record["step"])
            if "iter" in record:  # of the training
                done = step
                if "epoch" in record:
                    first.setdefault(int(record["epoch"]), step)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            damaged += 1
            continue
        by_epoch |= step < done  # no validation is at an earlier iteration than the line before it
        records.append(record)
    # Epochs log at equal distances. Only one that was resumed in its middle logs first later.
    pairs = itertools.pairwise(sorted(first.items()))
    length = max(((late - early) // (b - a) for (a, early), (b, late) in pairs), default=0)
    curves: dict[str, Curve] = {}
    done, is_moved = start, False
    for record in records:
        step = record.pop("step")
        if "iter" in record:
            done = step
        elif by_epoch:
            is_moved |= step * length == 0 and done > start
            step = step * length or done
        for name, value in record.items():
            if isinstance(value, (int, float)):
                value = float(value) if abs(value) < 1e30 else math.nan
                curves.setdefault(name, {})[step] = value
    notes = [f"{damaged} damaged lines are left out"] if damaged else []
    if is_moved:
        notes.append(
            "has no iterations of validations, which are shown at the last logged one before; set "
            "default_hooks.logger.log_metric_by_epoch=False"
        )
    return curves, notes


def cross_entropy(curves: dict[str, Curve]) -> Curve | None:
    """Return the decode head's cross-entropy; None for a run with other losses.

    For a head with several ones (DANet's), it is the loss of the prediction.
    """
    for name, curve in curves.items():  # a head logs the loss of its prediction first
        if name.startswith("decode.") and name.endswith("loss_ce"):
            return curve
    return None


@matplotlib.rc_context(_STYLE)
def curves_figure(runs: dict[str, dict[str, Curve]]) -> Figure:
    """Draw training loss, validation mIoU in percent and learning rate over the iterations.

    The loss is the cross-entropy of the prediction, else the sum of all losses.
    """
    figure = Figure(figsize=(4.9, 5.9), layout="constrained")
    loss, miou, rate = figure.subplots(3, 1, sharex=True, height_ratios=[2, 2, 1])
    names, kinds = [], {True: [], False: []}  # lines of the loss by whether it is cross-entropy
    for (name, curves), color in zip(runs.items(), itertools.cycle(COLORS), strict=False):
        losses = cross_entropy(curves)
        kind = kinds[losses is not None]
        if losses is None:
            losses = curves.get("loss", {})
        marker = "." if len(losses) == 1 else None  # a line of one point shows nothing
        rates = curves.get("lr", {})
        rate.plot(list(rates), list(rates.values()), marker=marker, color=color)
        lines = loss.plot(list(losses), list(losses.values()), marker=marker, color=color)
        kind += lines if losses else ()
        steps, scores = list(curves.get("mIoU", {})), list(curves.get("mIoU", {}).values())
        if scores:
            name = f"{name} {scores[-1]:.1f}"
        names.append(name)
        miou.plot(steps, scores, marker=".", label="run", color=color)
    about = "cross-entropy" if kinds[True] else "sum of all losses"
    if kinds[True] and kinds[False]:
        about = "cross-entropy; dashed: sum of all losses"
        for line in kinds[False]:
            line.set_linestyle("--")
    loss.set(title=f"Training loss ({about})", ylim=(0, None))
    miou.set(title="Validation mIoU, %", ylim=(0, 100))
    rate.set(title="Learning rate", ylim=(0, None), xlim=(0, None), xlabel="iteration")
    rate.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for text, name in zip(miou.legend().get_texts(), names, strict=True):
        text.set_text(name)  # as a label, a name that begins with _ would be left out
    return figure


def curves_svg(runs: dict[str, dict[str, Curve]]) -> str:
    """Return the figure as SVG for a page that defines the colors `--soft` and `--line`."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        curves_figure(runs).savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return svg.replace(_TEXT, "var(--soft)").replace(_GRID, "var(--line)")
