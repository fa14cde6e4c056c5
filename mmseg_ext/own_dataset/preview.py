"""A picture of some images of each split with their labels, to look at before training.

The image with most pixels of a class shows it best, so these images come first, in the order of the
rarest class; others fill the rest of the picture.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from mmengine.config import Config
from mmseg.registry import TRANSFORMS

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.datasets.label_loading import CheckedLoadAnnotations
from mmseg_ext.engine.config import classes_and_palette, inner_datasets
from mmseg_ext.images.pictures import colorize, to_picture
from mmseg_ext.inference.objects import find_objects
from mmseg_ext.own_dataset.item import evenly
from mmseg_ext.own_dataset.summary import Split

PREVIEW = "preview.png"  # its name in a project
_IMAGES = 12
_HEIGHT = 220  # pixels of an image; very wide ones are lower
_WIDTH = 1824  # pixels of a row: three pairs of 4:3, four squares
_GAP = 4  # pixels between an image and its labels
_TITLE, _LETTER = 28, 7  # pixels above a picture, and of a digit
_LEGEND_COLUMNS = 6


def write_preview(cfg: Config, splits: Sequence[Split], path: Path) -> None:
    """Write up to twelve images of the splits of `cfg`, each next to its labels in color.

    Each class is in the image with most of its pixels, rare classes first. The titles of projects
    with numbered objects have their count.
    """
    dataset: Any = next(inner_datasets(cfg.val_dataloader.dataset))
    meta = classes_and_palette(dataset)
    load: Any = TRANSFORMS.build({**dataset["pipeline"][0], "type": "CheckedLoadImage"})
    load_label = CheckedLoadAnnotations(len(meta["classes"]))
    metrics = cfg.get("val_evaluator") or []
    metrics = metrics if isinstance(metrics, list) else [metrics]
    counted = [metric.get("object_class") for metric in metrics]
    titles, cells = [], []
    legend = list(zip(meta["classes"], meta["palette"], strict=True))
    ignored = ("ignored", [255] * 3)
    for title, sample in _choose(splits):
        results = load_label.transform(load.transform({**sample, "seg_fields": []}))
        image, label = to_picture(results["img"], cfg.get("rgb_bands")), results["gt_seg_map"]
        if ignored not in legend and (label >= len(meta["classes"])).any():
            legend.append(ignored)
        for i, name in enumerate(meta["classes"]):
            if name in counted:
                title = f"{title}: {len(find_objects(label, i, name))} objects"
        titles.append(title)
        # The image, and next to it the same under the colors of its labels.
        height, width = label.shape
        scale = min(_HEIGHT / height, (_WIDTH - _GAP) // 2 / width)
        size = (max(1, round(scale * width)), max(1, round(scale * height)))
        smooth = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        shown = cv2.resize(image, size, interpolation=smooth)
        reduced = cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
        mixed = (shown * 0.4 + colorize(reduced, meta["palette"]) * 0.6).astype(np.uint8)
        gap = np.full((size[1], _GAP, 3), 255, np.uint8)
        cells.append(np.hstack([shown, gap, mixed]))

    places, height = _places(cells)
    height += 22 * math.ceil(len(legend) / _LEGEND_COLUMNS) + 20
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a script that the font lacks
        figure = Figure(figsize=(_WIDTH / 100, height / 100), dpi=100)
        for title, cell, (left, top) in zip(titles, cells, places, strict=True):
            figure.figimage(cell, left, height - top - len(cell))
            letters = cell.shape[1] // _LETTER
            if len(title) > letters:  # its start or its end can tell photos apart
                half = max(1, (letters - 1) // 2)
                title = f"{title[:half]}…{title[-half:]}"
            figure.text(left / _WIDTH, 1 - (top - _GAP) / height, title, fontsize=8)
        handles = []
        for name, color in legend:
            red, green, blue = np.array(color) / 255
            handles.append(Patch(facecolor=(red, green, blue), edgecolor="gray", label=name))
        figure.legend(handles=handles, loc="lower center", ncols=_LEGEND_COLUMNS)
        save_figure(figure, path, dpi=100)


def _places(cells: Sequence[np.ndarray]) -> tuple[list[tuple[int, int]], int]:
    """Return the left and top of each picture in rows, below its title, and the height of all."""
    places = []
    left, top, bottom = 0, _TITLE, 0
    for cell in cells:
        height, width = cell.shape[:2]
        if left + width > _WIDTH:
            left, top = 0, bottom + _TITLE
        places.append((left, top))
        left += width + 4 * _GAP
        bottom = max(bottom, top + height)
    return places, bottom


def _choose(splits: Sequence[Split]) -> list[tuple[str, Mapping]]:
    """Return the title and the sample of up to twelve images, of each split as many.

    Those with most pixels of a class come first, rare classes before others.
    """
    found: list[tuple[str, Mapping]] = []
    labeled = [split for split in splits if split.pixels.any()]
    for splits_left in range(len(labeled), 0, -1):  # the training set is last, and fills the rest
        split = labeled[splits_left - 1]
        counts = np.array([item.counts[: len(split.classes)] for item in split.items])  # (N, C)
        largest = []
        for i in np.argsort(split.images, kind="stable"):
            if split.images[i]:
                largest.append(split.items[int(counts[:, i].argmax())])
        different = {item.image: item for item in [*largest, *evenly(split.items, _IMAGES)]}
        chosen = list(different.values())[: (_IMAGES - len(found)) // splits_left]
        titles = [f"{split.name}: {Path(item.sample['img_path']).name}" for item in chosen]
        found = [*zip(titles, (item.sample for item in chosen), strict=True), *found]
    return found
