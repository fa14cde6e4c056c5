"""Find images that are copies of another one, or nearly so, by their small versions.

A small version is the image in gray, 16 x 16, without its brightness and contrast. The product of
two of them is 1 for equal images.
"""

from collections.abc import Iterator, Sequence

import cv2
import numpy as np

# Of the contrast. Measured: photos that are turned, halved or saved as JPEG of quality 30 differ by
# up to 0.05, photos with 15 % more contrast by 0.1, frames of a standing car by 0.04, and photos of
# different things by 0.15 or more.
_NEAR = 0.05
_SIDE = 16  # pixels of a small version
_ROWS = 64  # images that are compared at once


def small_version(image: np.ndarray, missing: float | None = None) -> np.ndarray:
    """Return an image (H, W, ...) in gray, 16 x 16, of mean 0 and length 1; 0 if it is flat.

    Values that are `missing` or not finite count as the mean of the others.
    """
    bands = image.reshape(*image.shape[:2], -1)[..., :3]
    if bands.dtype.kind == "f" or missing is not None:
        known = np.isfinite(bands) & (bands != missing)
        bands = np.where(known, bands, bands[known].mean() if known.any() else 0)
    step = (float(bands.max()) - float(bands.min())) / 255
    if bands.dtype == np.uint8 and bands.size > 2**18:  # fast, before there are floats
        bands = cv2.resize(bands, (8 * _SIDE, 8 * _SIDE), interpolation=cv2.INTER_AREA)
    small = cv2.resize(bands.astype(np.float32), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    small = small.reshape(_SIDE, _SIDE, -1).mean(2)
    small -= small.mean()
    length = np.linalg.norm(small)
    return small / length if step and length > step * _SIDE else np.zeros_like(small)


def find_copies(
    small: Sequence[np.ndarray], first: int | None = None
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the number of a small version, and of later ones that are nearly equal.

    Also if one is flipped or turned by 90 degrees. Only the `first` ones are compared with later
    ones, by default all.
    """
    if not len(small):
        return
    images = np.stack(small)
    flat = images.reshape(len(images), -1)
    first = len(images) if first is None else first
    for start in range(0, first, _ROWS):
        own = images[start : min(start + _ROWS, first)]
        turned = [np.rot90(v, k, (1, 2)) for v in (own, own[:, :, ::-1]) for k in range(4)]
        rows = np.stack(turned, 1).reshape(-1, flat.shape[1])
        closeness = (rows @ flat[start:].T).reshape(len(own), len(turned), -1)
        for i, near in enumerate(closeness.max(1) > 1 - _NEAR**2 / 2):
            if others := (start + i + 1 + np.flatnonzero(near[i + 1 :])).tolist():
                yield start + i, others
