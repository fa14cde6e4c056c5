"""Loss and mIoU over the iterations, from the `scalars.json` of the local visualisation backend."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from mmseg_ext.atomic_write import save_figure

COLOURS = ("#2f6fde", "#e4572e", "#2a9d6f", "#8b5cd6")
_GREY = "#5b6270"


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
    """The decode head's cross-entropy; of a head with several (DANet's), its prediction's.

    Raises:
        ValueError: if there is none among the curves.
    """
    for name, curve in curves.items():  # a head logs the loss of its prediction first
        if name.startswith("decode.") and name.endswith("loss_ce"):
            return curve
    raise ValueError(f"no cross-entropy of a decode head among {', '.join(curves)}")


def plot_curves(runs: dict[str, dict[str, Curve]], path: Path) -> None:
    """Training loss (left) and validation mIoU in percent (right) of each named run, as a PNG."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    loss, miou = figure.subplots(1, 2)
    for (name, curves), colour in zip(runs.items(), COLOURS, strict=False):
        loss.plot(*prediction_loss(curves), color=colour, linewidth=1.6, label=name)
        steps, values = curves["mIoU"]
        last = f"{name} {values[-1]:.1f}"
        miou.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=5, label=last)
    loss.set_title("Training loss (cross-entropy)")
    loss.set_ylim(bottom=0)
    miou.set_title("Validation mIoU, %")
    miou.set_ylim(0, 100)
    for axes in (loss, miou):
        _style(axes)
    loss.legend(frameon=False)
    miou.legend(frameon=False, loc="lower right")
    save_figure(figure, path, 130)


def _style(axes) -> None:
    axes.set_xlabel("iteration", color=_GREY)
    axes.set_xlim(left=0)
    axes.margins(x=0.06)
    axes.title.set_fontsize(12)
    axes.grid(color="#e6e8ee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_GREY, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
