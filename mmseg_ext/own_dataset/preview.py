"""A picture of some images of each split with their labels, to look at before training.

The image with most pixels of a class shows it best, so these images come first, in the order of the
rarest class; others fill the rest of the picture.
"""

import math
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
    titles, cells = [], []
    for title, sample in _choose(summaries):
        results = load_label.transform(load.transform({**sample, "seg_fields": []}))
        image = to_picture(results["img"], cfg.get("rgb_bands"))
        titles.append(title)
        cells.append(_picture(image, results["gt_seg_map"], meta["palette"]))
    handles = _legend(meta["classes"], meta["palette"])
    rows, legend_rows = math.ceil(len(cells) / _COLUMNS), math.ceil(len(handles) / _LEGEND_COLUMNS)
    height = max(map(len, cells))
    size = (2.1 * _SIDE * _COLUMNS / 100, (rows * (height + 30) + legend_rows * 22 + 20) / 100)
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a script that the font lacks
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axis in axes:
            axis.set_axis_off()
        for axis, title, cell in zip(axes, titles, cells, strict=False):
            axis.set_title(title, fontsize=9)
            axis.imshow(cell)
        figure.legend(handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS)
        save_figure(figure, path, dpi=100)


def _legend(classes: Sequence[str], palette: Sequence[Sequence[int]]) -> list[Patch]:
    """Return a field in the color of each class, and a white one for ignored pixels."""
    handles = []
    for text, color in zip([*classes, "ignored"], [*palette, [255] * 3], strict=True):
        red, green, blue = np.array(color) / 255
        handles.append(Patch(facecolor=(red, green, blue), edgecolor="gray", label=text))
    return handles


def _choose(summaries: Sequence[Summary]) -> list[tuple[str, Mapping]]:
    """Return the title and the sample of up to twelve images, of each split as many."""
    found: list[tuple[str, Mapping]] = []
    labeled = [summary for summary in summaries if summary.pixels.any()]
    for splits_left in range(len(labeled), 0, -1):  # the training set is last, and fills the rest
        summary = labeled[splits_left - 1]
        of_split = []
        for sample in _different_samples(summary)[: (_IMAGES - len(found)) // splits_left]:
            of_split.append((f"{summary.split}: {Path(sample['img_path']).name[-40:]}", sample))
        found = of_split + found
    return found


def _different_samples(summary: Summary) -> list[Mapping]:
    """Return the samples with most pixels of a class, rare classes first, then others."""
    different: dict[str, Mapping] = {}
    for i in sorted(summary.largest, key=lambda i: summary.images[i]):
        _, sample = summary.largest[i]
        different.setdefault(sample["img_path"], sample)
    for i in np.linspace(0, len(summary.samples) - 1, _IMAGES).astype(int):
        sample = summary.samples[i]
        different.setdefault(sample["img_path"], sample)
    return list(different.values())


def _picture(image: np.ndarray, label: np.ndarray, palette: Sequence) -> np.ndarray:
    """Return an RGB image next to the same under the colors of its labels; both are large."""
    shown, reduced = shrink(_SIDE, image, label)
    mixed = shown * 0.4 + colorize(reduced, palette) * 0.6
    factor = max(1, _SIDE // max(reduced.shape))
    gap = np.full((factor * len(shown), 4, 3), 255, np.uint8)
    return np.hstack([_enlarge(shown, factor), gap, _enlarge(mixed.astype(np.uint8), factor)])


def _enlarge(image: np.ndarray, factor: int) -> np.ndarray:
    return image.repeat(factor, 0).repeat(factor, 1)
