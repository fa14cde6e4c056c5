"""The context probe's table and plot."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.inspection.context_probe import DISTANCES, RADIUS, Probe

_COLOURS = ("#5b6270", "#2f6fde", "#e4572e", "#2a9d6f", "#8b5cd6", "#b8860b")


def by_name(probes: Sequence[Probe]) -> dict[str, list[Probe]]:
    groups: dict[str, list[Probe]] = {}
    for probe in probes:
        groups.setdefault(probe.name, []).append(probe)
    return groups


def probe_table(probes: Sequence[Probe]) -> str:
    """Markdown: accuracy (mean over the seeds, the lowest behind it) and the field's far part."""
    head = ["block", "parameters", *(f"cue at {d} px" for d in DISTANCES)]
    head += [f"field beyond {RADIUS} px: untrained", "trained"]
    rows = []
    for name, group in by_name(probes).items():
        row = [name, f"{group[0].parameters:,}"]
        for distance in DISTANCES:
            values = [100 * probe.accuracy[distance] for probe in group]
            row.append(f"{mean(values):.1f} ({min(values):.1f})")
        row += [f"{100 * mean(probe.beyond[i] for probe in group):.1f} %" for i in range(2)]
        rows.append(row)
    return markdown(head, rows)


def draw_probe(probes: Sequence[Probe], path: Path) -> None:
    """Accuracy by distance, and the trained networks' effective receptive fields, as PNG."""
    groups = by_name(probes)
    figure = Figure(figsize=(11, 5.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.5, 1))
    curves, bars = top.subplots(1, 2, width_ratios=(1.3, 1))
    for i, (name, group) in enumerate(groups.items()):
        values = [100 * mean(p.accuracy[d] for p in group) for d in DISTANCES]
        style = "--" if "softmax" in name else "-"
        shift = 0.25 * (i - (len(groups) - 1) / 2)  # lines that coincide stay visible
        curves.plot(
            np.array(DISTANCES) + shift,
            values,
            style,
            color=_COLOURS[i],
            marker="o",
            markersize=5,
            linewidth=1.8,
            label=name,
        )
    curves.axhline(50, color="#999999", linewidth=1, linestyle=":")
    curves.set(title="Targets told right, %", xlabel="distance of the cue, pixels", ylim=(35, 104))
    curves.set_xticks(DISTANCES)
    curves.legend(frameon=False, fontsize=8)
    names = list(groups)
    for offset, index, label, strength in ((-0.2, 0, "untrained", 0.35), (0.2, 1, "trained", 1.0)):
        values = [100 * mean(p.beyond[index] for p in groups[name]) for name in names]
        places = np.arange(len(names)) + offset
        bars.barh(places, values, 0.38, color=_COLOURS[: len(names)], alpha=strength, label=label)
    bars.set_yticks(range(len(names)), names, fontsize=8)
    bars.invert_yaxis()
    bars.set_title(f"Gradient from beyond {RADIUS} px, % (pale: untrained)", fontsize=10)
    for axes in (curves, bars):
        axes.grid(color="#e6e8ee", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels = bottom.subplots(1, len(groups), squeeze=False)[0]
    for axes, (name, group) in zip(panels, groups.items(), strict=True):
        field_map = np.mean([p.field_map.numpy() for p in group], 0)
        shown = np.maximum(field_map / field_map.max(), 1e-4)
        axes.imshow(shown, cmap="magma", norm=LogNorm(1e-4, 1))
        axes.set_title(name, fontsize=8)
        axes.axis("off")
    bottom.suptitle(
        "Effective receptive field of the middle, logarithmic over 4 decades", fontsize=9
    )
    save_figure(figure, path, 110)


def probe_json(probes: Sequence[Probe]) -> list[dict]:
    fields = ("name", "seed", "parameters", "accuracy", "beyond")
    return [{name: getattr(probe, name) for name in fields} for probe in probes]
