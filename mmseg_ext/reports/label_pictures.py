"""Label maps as pictures."""

from collections.abc import Sequence

import numpy as np


def colourise(label: np.ndarray, palette: Sequence[Sequence[int]]) -> np.ndarray:
    """Label map (H, W) as RGB (H, W, 3) uint8; labels beyond the palette (ignored) are white."""
    table = np.full((len(palette) + 1, 3), 255, np.uint8)
    table[:-1] = palette
    return table[np.minimum(label.astype(int), len(palette))]


def error_overlay(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, ignored: int = 255
) -> np.ndarray:
    """An image (H, W, 3) in grey with wrong pixels red and ignored ones white, uint8."""
    grey = 0.55 * image.mean(-1, keepdims=True) + 60
    out = np.repeat(grey, 3, -1)
    out[(truth != prediction) & (truth != ignored)] = (235, 52, 40)
    out[truth == ignored] = 255
    return out.astype(np.uint8)
