"""Images and label maps as pictures: RGB of 8 bits, to look at."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np


def colorize(label: np.ndarray, palette: Sequence[Sequence[int]]) -> np.ndarray:
    """Return a label map (H, W) as RGB (H, W, 3) uint8; labels beyond the palette are white."""
    table = np.full((len(palette) + 1, 3), 255, np.uint8)
    table[:-1] = palette
    return table[np.minimum(label.astype(int), len(palette))]


def shown_bands(channels: int, bands: Sequence[int] | None = None) -> list[int]:
    """Return the bands that are red, green and blue in pictures, numbered from 1 as in the file.

    By default these are 3, 2 and 1 of a satellite's, or the first one in gray if there are two.
    """
    if bands:
        return list(bands)
    if channels < 3:
        return [1, 1, 1]
    return [1, 2, 3] if channels == 3 else [3, 2, 1]


def to_picture(image: np.ndarray, bands: Sequence[int] | None = None) -> np.ndarray:
    """Return RGB (H, W, 3) uint8 of a loaded image (H, W) or (H, W, C).

    `bands` are the config's `rgb_bands`.
    """
    image = np.atleast_3d(image)
    count = image.shape[2]
    bands = shown_bands(count, bands)
    if count == 3 and bands == [1, 2, 3] and image.dtype == np.uint8:  # in a seventh of the time
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    numbers = np.array(bands)
    chosen = 3 - numbers if count == 3 else numbers - 1  # three are BGR
    return np.ascontiguousarray(image[..., chosen].clip(0, 255), dtype=np.uint8)


def shrink(side: int, image: np.ndarray, *labels: np.ndarray) -> list[Any]:
    """Return an image (H, W, 3) and label maps (h, w), all at most `side` pixels long and wide.

    The image gets the size of the label maps.
    """
    scale = min(1, side / max(labels[0].shape))
    size = [max(1, round(scale * n)) for n in reversed(labels[0].shape)]
    maps = [cv2.resize(x, size, interpolation=cv2.INTER_NEAREST) for x in labels]
    return [cv2.resize(image, size, interpolation=cv2.INTER_AREA), *maps]


def error_overlay(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, ignored: int
) -> np.ndarray:
    """Return an image (H, W, 3) in gray, with wrong pixels red and ignored pixels white, uint8."""
    gray = 0.55 * image.mean(-1, keepdims=True) + 60
    out = np.repeat(gray, 3, -1)
    out[(truth != prediction) & (truth != ignored)] = (235, 52, 40)
    out[truth == ignored] = 255
    return out.astype(np.uint8)
