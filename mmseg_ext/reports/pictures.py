"""Label maps as pictures, and grids of pictures with a legend."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mmseg_ext.atomic_write import save_figure


def colorize(label: np.ndarray, palette: Sequence[Sequence[int]]) -> np.ndarray:
    """Return a label map (H, W) as RGB (H, W, 3) uint8; labels beyond the palette are white."""
    table = np.full((len(palette) + 1, 3), 255, np.uint8)
    table[:-1] = palette
    return table[np.minimum(label.astype(int), len(palette))]


def error_overlay(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, ignored: int = 255
) -> np.ndarray:
    """Return an image (H, W, 3) in gray, with wrong pixels red and ignored pixels white, uint8."""
    gray = 0.55 * image.mean(-1, keepdims=True) + 60
    out = np.repeat(gray, 3, -1)
    out[(truth != prediction) & (truth != ignored)] = (235, 52, 40)
    out[truth == ignored] = 255
    return out.astype(np.uint8)


_INCHES = 1.55  # width of a panel


def draw_panels(
    rows: dict[str, list[np.ndarray]],
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    path: Path,
) -> None:
    """Write a grid as PNG: rows with names, each with as many images (H, W, 3) or labels (H, W)."""
    first = next(iter(rows.values()))
    columns, (height, width) = len(first), first[0].shape[:2]
    inches = (columns * _INCHES + 0.35, len(rows) * _INCHES * height / width + 0.5)
    figure = Figure(figsize=inches, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0, hspace=0)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes_row, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(axes_row, images, strict=True):
            is_label = image.ndim == 2
            shown = colorize(image, palette) if is_label else image
            axes.imshow(shown, interpolation="nearest" if is_label else "lanczos")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        axes_row[0].set_ylabel(name, fontsize=10)
    handles = [
        Patch(facecolor=np.array(color) / 255, edgecolor="#999999", linewidth=0.5, label=name)
        for name, color in zip(classes, palette, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    save_figure(figure, path, 110)
