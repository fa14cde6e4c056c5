"""Pictures of a dataset's samples and of predictions: one column per image, a legend of classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from mmseg_ext.atomic_write import save_figure

_PANEL_INCHES = 1.55
_DPI = 110


def colourise(label: np.ndarray, palette: Sequence[Sequence[int]]) -> np.ndarray:
    """Label map (H, W) as RGB (H, W, 3) uint8; labels beyond the palette (ignored) are white."""
    table = np.full((len(palette) + 1, 3), 255, np.uint8)
    table[:-1] = palette
    return table[np.minimum(label.astype(int), len(palette))]


def draw_panels(
    rows: dict[str, list[np.ndarray]],
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    path: Path,
    title: str = "",
) -> None:
    """A grid as PNG: a named row of images (H, W, 3) or labels (H, W) each.

    Raises:
        ValueError: if the rows differ in length or there are none.
    """
    lengths = {len(images) for images in rows.values()}
    if len(lengths) != 1:
        raise ValueError(f"rows must have one length, got {sorted(lengths)}")
    columns = lengths.pop()
    height, width = next(iter(rows.values()))[0].shape[:2]
    panel_height = _PANEL_INCHES * height / width
    legend_inches, title_inches = 0.45, 0.4 if title else 0.08
    size = (
        columns * _PANEL_INCHES + 0.35,
        len(rows) * panel_height + legend_inches + title_inches,
    )
    figure = Figure(figsize=size)
    grid = figure.subplots(
        len(rows),
        columns,
        squeeze=False,
        gridspec_kw={
            "left": 0.3 / size[0],
            "right": 1 - 0.05 / size[0],
            "top": 1 - title_inches / size[1],
            "bottom": legend_inches / size[1],
            "wspace": 0.04,
            "hspace": 0.04,
        },
    )
    for axes_row, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(axes_row, images, strict=True):
            is_label = image.ndim == 2
            shown = colourise(image, palette) if is_label else image
            axes.imshow(shown, interpolation="nearest" if is_label else "lanczos", aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            for side in axes.spines.values():
                side.set_visible(False)
        axes_row[0].set_ylabel(name, fontsize=10)
    if title:
        figure.suptitle(title, fontsize=11, y=1 - 0.12 / size[1], va="top")
    handles = [
        Patch(facecolor=np.array(colour) / 255, edgecolor="#999999", linewidth=0.5, label=name)
        for name, colour in zip(classes, palette, strict=True)
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handlelength=1.1,
        handleheight=1.1,
        columnspacing=1.3,
    )
    save_figure(figure, path, _DPI)


def reduce_colours(path: Path) -> None:
    """Rewrite a PNG with a dithered palette of 256 colours: noisy images shrink to a third."""
    with Image.open(path) as picture:
        colours = picture.convert("RGB")
    palette = colours.quantize(256, method=Image.Quantize.MEDIANCUT)
    colours.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
