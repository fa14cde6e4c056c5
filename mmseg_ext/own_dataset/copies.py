"""Find images that are copies of another one, or nearly so, by their small versions.

A small version is the image in gray, 16 x 16, without its brightness and contrast. The product of
two of them is 1 for equal images. Each image has a second one without its flat borders, which
padding adds: a copy that is flipped before it is padded has its border on the other side.
"""

from collections.abc import Iterator, Sequence

import cv2
import numpy as np

# Of the contrast. Measured: photos that are turned, halved or saved as JPEG of quality 30 differ by
# up to 0.05, photos with 15 % more contrast by 0.1, frames of a standing car by 0.04, and photos of
# different things by 0.15 or more.
_NEAR = 0.05
# Edges of borders are known to half a pixel. Frames of a video have equal borders, so with them
# they are not far.
_NEAR_INSIDE, _FAR = 0.1, 0.2
_SIDE = 16  # pixels of a small version
_ROWS = 64  # images that are compared at once
_NOISE = 8 / 255  # of the contrast; JPEG changes flat borders less
_STRAIGHT = 0.02  # of a side, in which the edge of a border is complete
_COLUMNS = 64  # that are looked at
_LEAST = 0.25  # of a side; a smaller rest, such as one bright line, is like that of other images


def small_version(image: np.ndarray, missing: float | None = None) -> np.ndarray:
    """Return an image (H, W, ...) in gray, with and without its flat borders, (2, 16, 16).

    Both have mean 0 and length 1, or are 0 if they are flat. Values that are `missing` or not
    finite count as the mean of the others.
    """
    bands = image.reshape(*image.shape[:2], -1)[..., :3]
    if bands.dtype.kind == "f" or missing is not None:
        known = np.isfinite(bands) & (bands != missing)
        bands = np.where(known, bands, bands[known].mean() if known.any() else 0)
    contrast = float(bands.max()) - float(bands.min())
    complete = _reduce(bands, contrast)
    inner = _without_borders(bands, contrast)
    return np.stack([complete, _reduce(inner, contrast) if inner is not bands else complete])


def _reduce(bands: np.ndarray, contrast: float) -> np.ndarray:
    """Return bands (H, W, C) in gray, (16, 16), of mean 0 and length 1; 0 if they are flat."""
    step = contrast / 255
    if bands.dtype == np.uint8 and bands.size > 2**18:  # fast, before there are floats
        bands = cv2.resize(bands, (8 * _SIDE, 8 * _SIDE), interpolation=cv2.INTER_AREA)
    small = cv2.resize(bands.astype(np.float32), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    small = small.reshape(_SIDE, _SIDE, -1).mean(2)
    small -= small.mean()
    length = np.linalg.norm(small)
    return small / length if step and length > step * _SIDE else np.zeros_like(small)


def _without_borders(bands: np.ndarray, contrast: float) -> np.ndarray:
    """Return the part of an image (H, W, C) inside of flat borders; all of it if there are none."""
    inner = bands
    for _ in range(4):  # top, right, bottom and left, after which the image is upright
        inner = np.rot90(inner[_border(inner, _NOISE * contrast) :])
    is_large = min(np.divide(inner.shape[:2], bands.shape[:2])) >= _LEAST
    return inner if is_large and inner.shape != bands.shape else bands


def _border(bands: np.ndarray, noise: float) -> int:
    """Return the number of flat rows at the top that end at a straight edge."""
    some = bands[:, :: max(1, bands.shape[1] // _COLUMNS)].astype(np.float32)
    differs = abs(some - some[0, 0]).mean(2) > noise  # of each pixel from the first one
    first = int(differs.any(1).argmax())
    edge = int((differs.mean(1) > 0.5).argmax())  # 0 if there is none
    if edge - first > max(4, _STRAIGHT * len(bands)):  # an object that begins with a few pixels
        return 0
    return edge


def find_copies(
    small: Sequence[np.ndarray], first: int | None = None
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the number of a small version, and of later ones that are nearly equal.

    Also if one is flipped or turned by 90 degrees. Only the `first` ones are compared with later
    ones, by default all.
    """
    if not len(small):
        return
    images = np.stack(small, 1)  # (2, N, 16, 16)
    flat = images.reshape(*images.shape[:2], -1)
    first = len(small) if first is None else first
    for start in range(0, first, _ROWS):
        own = images[:, start : min(start + _ROWS, first)]
        turned = [np.rot90(v, k, (2, 3)) for v in (own, own[..., ::-1]) for k in range(4)]
        rows = np.stack(turned, 2).reshape(2, -1, flat.shape[2])
        closeness = rows @ flat[:, start:].swapaxes(1, 2)  # (2, rows of turned ones, N - start)
        complete, inside = 2 - 2 * closeness  # squares of distances
        has_other_border = (inside < _NEAR_INSIDE**2) & (complete > _FAR**2)
        is_near = (np.minimum(complete, inside) < _NEAR**2) | has_other_border
        is_near = is_near.reshape(own.shape[1], len(turned), -1).any(1)
        for i, near in enumerate(is_near):
            if others := (start + i + 1 + np.flatnonzero(near[i + 1 :])).tolist():
                yield start + i, others
