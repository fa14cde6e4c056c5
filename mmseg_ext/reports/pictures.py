"""Label maps as pictures."""

from collections.abc import Sequence

import numpy as np


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
