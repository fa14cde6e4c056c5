"""A picture of some images of each split with their labels, to look at before training."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from mmengine.config import Config
from mmseg.registry import TRANSFORMS

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.datasets.label_loading import CheckedLoadAnnotations
from mmseg_ext.engine.config import classes_and_palette, inner_datasets
from mmseg_ext.images.pictures import colorize, shrink, to_picture
from mmseg_ext.own_dataset.check import Summary

PREVIEW = "preview.png"  # its name in a project
_IMAGES, _COLUMNS = 12, 3
_SIDE = 280  # pixels of the longer side of an image
_LEGEND_COLUMNS = 6


def write_preview(cfg: Config, summaries: Sequence[Summary], path: Path) -> None:
    """Write up to twelve images of the splits of `cfg`, each next to its labels in color.

    Each class is in the image with most of its pixels, rare classes first.
    """
    dataset: Any = next(inner_datasets(cfg.val_dataloader.dataset))
    meta = classes_and_palette(dataset)
    load: Any = TRANSFORMS.build({**dataset["pipeline"][0], "type": "CheckedLoadImage"})
    load_label = CheckedLoadAnnotations(len(meta["classes"]))
    cells = []
    for name, sample in _choose(summaries):
        results = load_label.transform(load.transform({**sample, "seg_fields": []}))
        image = to_picture(results["img"], cfg.get("rgb_bands"))
        cells.append((name, _picture(image, results["gt_seg_map"], meta["palette"])))
    rows, height = -(-len(cells) // _COLUMNS), max(cell.shape[0] for _, cell in cells)
    colors = np.array([*meta["palette"], [255] * 3]) / 255
    handles = [
        Patch(facecolor=color, edgecolor="gray", label=text)
        for text, color in zip([*meta["classes"], "ignored"], colors, strict=True)
    ]
    legend = -(-len(handles) // _LEGEND_COLUMNS)
    size = (2.1 * _SIDE * _COLUMNS / 100, (rows * (height + 30) + legend * 22 + 20) / 100)
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a script that the font lacks
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axis in axes:
            axis.set_axis_off()
        for axis, (name, cell) in zip(axes, cells, strict=False):
            axis.set_title(name, fontsize=9)
            axis.imshow(cell)
        figure.legend(handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS)
        save_figure(figure, path, dpi=100)


def _choose(summaries: Sequence[Summary]) -> list[tuple[str, Mapping]]:
    """Return the title and the sample of up to twelve images, of each split as many."""
    found: list[tuple[str, Mapping]] = []
    labeled = [summary for summary in summaries if summary.pixels.any()]
    for i, summary in reversed([*enumerate(labeled, 1)]):  # the training set fills the rest
        rare_first = sorted(summary.largest, key=lambda c: summary.images[c])
        evenly = np.linspace(0, len(summary.samples) - 1, _IMAGES).astype(int)
        samples = [summary.largest[c][1] for c in rare_first]
        samples += [summary.samples[j] for j in evenly]
        different = list({sample["img_path"]: sample for sample in samples}.values())
        titles = (f"{summary.split}: {Path(s['img_path']).name[-40:]}" for s in different)
        found = [*zip(titles, different, strict=True)][: (_IMAGES - len(found)) // i] + found
    return found


def _picture(image: np.ndarray, label: np.ndarray, palette: Sequence) -> np.ndarray:
    """Return an RGB image next to the same under the colors of its labels; both are large."""
    shown, reduced = shrink(_SIDE, image, label)
    mixed = shown * 0.4 + colorize(reduced, palette) * 0.6
    factor = max(1, _SIDE // max(reduced.shape))
    large = [part.repeat(factor, 0).repeat(factor, 1) for part in (shown, mixed.astype(np.uint8))]
    gap = np.full((len(large[0]), 4, 3), 255, np.uint8)
    return np.hstack([large[0], gap, large[1]])
