"""The pixels of a mask file as codes: integers that keep all a pixel can mean.

A code is `kind << 40 | index << 24 | color`: a gray value 7 is 7 << 24 | 0x070707, the palette
index 2 of red is 1 << 40 | 2 << 24 | 0xFF0000, and red itself is 2 << 40 | 255 << 24 | 0xFF0000.
Whether index or color counts is decided after all masks are read. The index of a color is its
largest part, so 0 is black, as the index 0 of gray values and of most palettes.
"""

from pathlib import Path
from typing import Any

import numpy as np

from mmseg_ext.images.values import Pixels, is_tiff, read_pixels

GRAY, PALETTE, COLOR = 0, 1, 2  # the kinds
TWO_CLASSES = "run: mkdir NEW; magick mogrify -path NEW -format png -threshold 50% MASKS/*"
_BLACK = COLOR << 40
_RGB = np.array([0x10000, 0x100, 1])


def kind_of(code: Any) -> Any:
    """Return the kind of a code, or of each code of an array."""
    return code >> 40


def index_of(code: Any) -> Any:
    """Return the gray value, the index or the largest part of a color."""
    return code >> 24 & 0xFFFF


def color_of(code: Any) -> Any:
    """Return the color 0xRRGGBB."""
    return code & 0xFFFFFF


def is_gray(code: int) -> bool:
    """Return whether the color of a code has three equal parts."""
    return color_of(code) % 0x10101 == 0


def read_codes(path: Path) -> np.ndarray:
    """Return the code of each pixel of a mask file, (H, W) int64.

    Raises:
        ValueError: if the file is no mask.
    """
    data = path.read_bytes()
    if data.startswith(b"\xff\xd8"):
        raise ValueError(f"JPEG changes a mask; export PNG, or for two classes {TWO_CLASSES}")
    pixels = read_pixels(data, indices=True)
    if is_tiff(data):
        pixels = pixels.upright()
    values = _whole_numbers(pixels)
    if pixels.palette is not None:
        codes = _palette_codes(pixels.palette)[values[..., 0]]
    elif values.shape[2] == 1:
        codes = values[..., 0] << 24 | values[..., 0].clip(0, 255) * 0x10101
    else:
        codes = _color_codes(values)
    for band in pixels.alpha:  # an eraser leaves any color
        codes[pixels.values[..., band] == 0] = _BLACK
    return codes


def _whole_numbers(pixels: Pixels) -> np.ndarray:
    """Return the values without alpha, (H, W, 1 or 3) int64 from 0 to 65535."""
    values = pixels.values
    if values.dtype == bool:
        values = np.where(values, 255, 0)  # white is 255 in files of 8 bits
    values = np.delete(values, pixels.alpha, axis=2)
    if values.shape[2] not in (1, 3):
        raise ValueError(f"{values.shape[2]} bands; a mask has a value or a color in each pixel")
    with np.errstate(invalid="ignore"):  # NaN, which differs from its integer
        numbers = values.astype(np.int64)
    if (numbers != values).any() or numbers.min() < 0 or numbers.max() > 0xFFFF:
        found = f"{values.dtype} values from {values.min()} to {values.max()}"
        raise ValueError(f"{found}; save whole numbers of 0 to 65535")
    return numbers


def _palette_codes(palette: np.ndarray) -> np.ndarray:
    """Return the code of each index of a palette, (N, 4) RGBA."""
    codes = PALETTE << 40 | np.arange(len(palette)) << 24 | palette[:, :3] @ _RGB
    codes[palette[:, 3] == 0] = _BLACK
    return codes


def _color_codes(colors: np.ndarray) -> np.ndarray:
    """Return the codes of colors (H, W, 3) of 8 bits, or of 16 bits that repeat 8."""
    if colors.max() > 255:
        if (colors % 257).any():
            raise ValueError("colors of 16 bits; save them with 8 bits")
        colors = colors // 257
    return COLOR << 40 | colors.max(2) << 24 | colors @ _RGB
