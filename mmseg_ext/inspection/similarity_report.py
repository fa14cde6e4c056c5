"""Attention similarity as numbers in plain lists, as a line and as the figures of DeepViT."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.inspection.similarity import SimilarityGroup

_NEIGHBOURS = (1, 2, 4, 8)


def as_report(groups: Sequence[SimilarityGroup]) -> list[dict]:
    """The numbers of each group in plain lists; None and a reason for what can't be compared."""
    report = []
    for group in groups:
        entry = {
            "name": group.name,
            "layers": group.layers,
            "threshold": group.threshold,
            "within_layers": None,
            "between_layers": None,
            "share_similar": None,
            "similar_layers": None,
            "with_neighbours": None,
        }
        if group.between_heads.shape[-1] > 1:
            entry["within_layers"] = group.within_layers().tolist()
        try:
            entry["between_layers"] = group.between_layers.mean(-1).tolist()
        except ValueError as error:
            entry["why_not"] = str(error)
        else:
            entry["share_similar"] = group.share_similar.tolist()
            entry["similar_layers"] = group.similar_layers().tolist()
            entry["with_neighbours"] = {
                str(k): group.with_neighbours(k).tolist()
                for k in _NEIGHBOURS
                if k < len(group.layers)
            }
        report.append(entry)
    return report


def draw(report: Sequence[dict], path: Path, title: str) -> None:
    """A row of three figures per group, as in the paper: neighbours, similar layers, heads."""
    figure = Figure(figsize=(11, 3.1 * len(report) + 0.3), layout="constrained")
    figure.suptitle(title)
    rows = figure.subplots(len(report), 3, squeeze=False)
    for axes, entry in zip(rows, report, strict=True):
        _draw_neighbours(axes[0], entry)
        _draw_similar(axes[1], entry)
        _draw_heads(axes[2], entry)
    save_figure(figure, path, 110)


def _depth(entry: dict) -> range:
    return range(1, len(entry["layers"]) + 1)


def _style(axes, entry: dict, heading: str, label: str) -> None:
    axes.set_title(f"{entry['name']}: {heading}", fontsize=9)
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)


def _draw_neighbours(axes, entry: dict) -> None:
    _style(axes, entry, "each layer and its k neighbours", "cosine similarity")
    if entry["between_layers"] is None or not entry["with_neighbours"]:
        _say(axes, "not comparable across layers" if "why_not" in entry else "a single layer")
        return
    curves = entry["with_neighbours"]
    for k, values in curves.items():
        axes.plot(_depth(entry), values, marker="o", markersize=3, label=f"k = {k}")
    axes.set_ylim(min(0.0, *(min(values) for values in curves.values())) - 0.02, 1.02)
    axes.legend(fontsize=7)


def _draw_similar(axes, entry: dict) -> None:
    _style(axes, entry, f"layers like the one before (≥ {entry['threshold']:g})", "number")
    if entry["similar_layers"] is None:
        _say(axes, "not comparable across layers")
        return
    axes.step(_depth(entry), entry["similar_layers"], where="mid", color="#c0392b")
    axes.set_ylim(0, len(entry["layers"]))


def _draw_heads(axes, entry: dict) -> None:
    _style(axes, entry, "heads of one layer", "cosine similarity")
    if entry["within_layers"] is None:
        _say(axes, "a single head")
        return
    axes.bar(_depth(entry), entry["within_layers"], color="#2a6f97")
    axes.set_ylim(min(0.0, *entry["within_layers"]) - 0.02, 1.02)


def _say(axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def summary(entry: dict) -> str:
    """A line that says how alike the maps of one group are."""
    parts = [f"{entry['name']}: {len(entry['layers'])} layers"]
    if entry["within_layers"] is not None:
        heads = entry["within_layers"]
        parts.append(f"heads of a layer alike {sum(heads) / len(heads):.3f}")
    if entry["similar_layers"] is None:
        parts.append("layers not comparable")
    else:
        if entry["with_neighbours"]:
            near = entry["with_neighbours"]["1"]
            parts.append(f"neighbouring layers alike {sum(near) / len(near):.3f}")
        parts.append(f"{entry['similar_layers'][-1]} similar to the one before")
    return ", ".join(parts)
