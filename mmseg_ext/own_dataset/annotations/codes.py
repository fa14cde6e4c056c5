"""The pixels of a mask file as codes: integers that keep all a pixel can mean.

A code is `kind << 40 | index << 24 | color`: a gray value 7 is 7 << 24 | 0x070707, the palette
index 2 of red is 1 << 40 | 2 << 24 | 0xFF0000, and red itself is 2 << 40 | 255 << 24 | 0xFF0000.
Whether index or color counts is decided after all masks are read. The index of a color is its
largest part, so 0 is black, as the index 0 of gray values and of most palettes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mmseg_ext.images.files import read
from mmseg_ext.images.values import Photo, is_tiff
from mmseg_ext.own_dataset.annotations.reader import IndexMap, index_map

GRAY, PALETTE, COLOR = 0, 1, 2  # the kinds
NODATA = 3 << 40  # the code of pixels that a GeoTIFF declares to be without data
_BLACK = COLOR << 40
_BOTH_BLACK = (
    "a mask has transparent and black pixels, which are one class; if black is another one, save "
    "it in a color"
)
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


def read_mask(path: Path, binary: bool = False) -> IndexMap:
    """Return a mask file as an index map whose values are codes; one can be there twice.

    With `binary` the brighter half of the values becomes white, and the others black.

    Raises:
        UnreadableFileError: if the file does not decode.
        ValueError: if it is not a mask.
    """
    data = path.read_bytes()
    if data.startswith(b"\xff\xd8") and not binary:
        raise ValueError("JPEG changes a mask; export PNG, or if all are black and white, --binary")
    pixels = read(data, str(path), indices=not binary)
    if is_tiff(data):
        pixels = pixels.upright()
    missing = np.zeros(pixels.values.shape[:2], bool)
    if pixels.missing:  # many programs declare 0, which is mostly the background
        missing = pixels.without_data()
        pixels = replace(pixels, values=np.where(missing[..., None], 0, pixels.values))
    values = _whole_numbers(pixels)
    if binary:
        is_white = values.max(2, keepdims=True) > np.iinfo(values.dtype).max // 2
        values = np.where(is_white, np.uint8(255), np.uint8(0))
    if values.shape[2] == 1:
        found = index_map(values[..., 0])
        found.values = _codes_of(np.array(found.values), pixels.palette).tolist()
    else:
        found = index_map(_packed_colors(values))
        found.values = _codes_of_colors(np.array(found.values)).tolist()
    transparent = (pixels.values[..., list(pixels.alpha)] == 0).any(2)
    if not (transparent | missing).any():
        return found
    codes = np.array(found.values)[found.indices]
    notes = []
    if transparent.any() and (index_of(codes[~transparent & ~missing]) == 0).any():
        notes.append(_BOTH_BLACK)
    codes[transparent] = _BLACK  # an eraser leaves any color
    codes[missing] = NODATA
    marked = index_map(codes)
    marked.notes = notes
    return marked


def _whole_numbers(pixels: Photo) -> np.ndarray:
    """Return the values without alpha, (H, W, 1 or 3), uint8 or uint16."""
    values = pixels.values
    if values.dtype == bool:
        values = np.where(values, np.uint8(255), np.uint8(0))  # white is 255 in files of 8 bits
    if pixels.alpha:
        values = np.delete(values, pixels.alpha, axis=2)
    if values.shape[2] not in (1, 3):
        raise ValueError(f"{values.shape[2]} bands; a mask has a value or a color in each pixel")
    if values.dtype in (np.uint8, np.uint16):
        return values
    with np.errstate(invalid="ignore"):  # NaN, which differs from its integer
        numbers = values.astype(np.int64)
    if (numbers != values).any() or numbers.min() < 0 or numbers.max() > 0xFFFF:
        found = f"{values.dtype} values from {values.min()} to {values.max()}"
        raise ValueError(f"{found}; save whole numbers of 0 to 65535")
    return numbers.astype(np.uint16)


def _codes_of(values: np.ndarray, palette: np.ndarray | None) -> np.ndarray:
    """Return the codes of gray values, or of indices of a palette (N, 4) RGBA."""
    if palette is None:
        return values << 24 | values.clip(0, 255) * 0x10101
    colors = palette[values]
    codes = PALETTE << 40 | values << 24 | colors[:, :3] @ _RGB
    codes[colors[:, 3] == 0] = _BLACK
    return codes


def _packed_colors(colors: np.ndarray) -> np.ndarray:
    """Return colors (H, W, 3) of 8 bits, or of 16 bits that repeat 8, as 0xRRGGBB; (H, W)."""
    if colors.max() > 255:
        if (colors % 257).any():
            raise ValueError("colors of 16 bits; save them with 8 bits")
        colors = colors // 257
    packed = np.zeros(colors.shape[:2], np.int32)
    for band in range(3):
        packed = packed << 8 | colors[..., band]
    return packed


def _codes_of_colors(colors: np.ndarray) -> np.ndarray:
    """Return the codes of colors 0xRRGGBB."""
    largest = np.maximum.reduce([colors >> 16, colors >> 8 & 255, colors & 255])
    return COLOR << 40 | largest << 24 | colors
