"""The bands of a project's images, and the range and statistics of their values.

A network takes values from 0 to 255. Photos have them; of other images some pixels are measured,
and the config gets the range of each band.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mmseg_ext.images.files import read, read_bytes
from mmseg_ext.images.values import Photo, declared, is_deep, is_png_with_alpha, is_tiff
from mmseg_ext.own_dataset.item import evenly
from mmseg_ext.terminal import progress

_IMAGES, _PIXELS = 200, 10_000  # measured of a project, and of an image
_CLIPPED = 0.1  # percent of a band's pixels at each end, which hot pixels can be


@dataclass
class Channels:
    """The settings of a config that depend on the bands of its images."""

    count: int  # bands, without alpha that is no band
    value_range: list[tuple[float, float]] | None  # become 0 and 255, by band; None for 8 bits
    mean: list[float]  # of each band, from 0 to 255
    std: list[float]
    colors: bool  # whether the files declare that the first bands are red, green and blue
    alpha: tuple[int, ...] = ()  # the bands that files declare as alpha


def measure_images(paths: Sequence[Path]) -> Channels | None:
    """Measure up to 200 of the images; return None for photos, which need no measuring.

    Photos are gray or have three bands, of 8 bits, or of 16 bits whose range they use.

    Raises:
        UnreadableFileError: for a damaged image.
        ValueError: if the images have different numbers of bands.
    """
    chosen = evenly(paths, _IMAGES)
    files = []  # with some of the pixels, (N, 1, bands); none of photos, which have three bands
    for path in progress(chosen, "measuring", len(chosen)):
        data = read_bytes(str(path))
        if not (is_tiff(data) or is_deep(data) or is_png_with_alpha(data)):
            files.append(declared(np.zeros((0, 1, 3), np.uint8), colors=True))
            continue
        pixels = read(data, str(path))
        values = pixels.values.reshape(-1, 1, pixels.values.shape[2])
        files.append(replace(pixels, values=values[:: max(1, len(values) // _PIXELS)].copy()))
    alpha = _bands_in_alpha(files)
    kinds: dict[int, Path] = {}  # an image for each number of bands
    samples: list[Photo] = []
    for path, sample in zip(chosen, files, strict=True):
        values = sample.values if alpha else sample.bands()
        samples.append(replace(sample, values=values, alpha=()))
        kinds.setdefault(values.shape[2], path)
    if kinds.keys() == {1, 3}:  # gray is repeated
        del kinds[1]
    count, *others = kinds
    if others:
        raise ValueError(
            f"{kinds[count]}: has {count} bands, and {kinds[others[0]]} has {others[0]}; make a "
            "project of images with equal bands"
        )
    samples = [sample for sample in samples if sample.values.shape[2] == count]
    deep = []  # whose values are not those of 8 bits
    for sample in samples:
        if sample.values.dtype.kind == "f" or sample.white is None or sample.white > 255:
            deep.append(sample)
    use_16_bits = [sample.white == 0xFFFF and not sample.dark_note() for sample in deep]
    if count in (1, 3) and (not deep or any(use_16_bits)):
        return None
    limits = [_limits(deep, band) for band in range(count)] if deep else None
    pixels = np.concatenate([sample.fit(count, limits)[:, 0] for sample in samples])  # (N, count)
    mean, std = pixels.mean(0).round(2), pixels.std(0).clip(1).round(2)
    colors = all(sample.colors for sample in samples)
    return Channels(count, limits, mean.tolist(), std.tolist(), colors, alpha)


def _bands_in_alpha(samples: Sequence[Photo]) -> tuple[int, ...]:
    """Return the channels that are declared as alpha, but have content in most pixels.

    GDAL declares a fourth band so, and PNG has no other one. Real alpha is opaque or transparent
    but for soft edges, and in a set with other photos it is none of the bands.
    """
    bands, *others = {sample.alpha for sample in samples}
    if not bands or others:
        return ()
    values = np.concatenate([sample.values[..., bands] for sample in samples])
    known = values > 0  # others are transparent, or have no data
    is_content = np.sum(known & (values < values.max())) > known.sum() / 2
    return bands if is_content else ()


def _limits(samples: Sequence[Photo], band: int) -> tuple[float, float]:
    """Return the range of a band without its extremes, in integers for integers."""
    known = []
    for sample in samples:
        values = sample.values[:, 0, band].astype(float)
        known.append(values[np.isfinite(values) & (values != sample.missing)])
    values = np.concatenate(known)
    if not len(values):
        return 0, 1
    for end in (values.min(), values.max()):  # such as -9999, which a file may not declare
        rest = values[values != end]
        if end and len(rest) and abs(rest - end).min() > np.ptp(rest) > 0:
            values = rest
    low, high = np.percentile(values, (_CLIPPED, 100 - _CLIPPED))
    if low == high:
        low, high = values.min(), values.max()
    are_floats = any(sample.values.dtype.kind == "f" for sample in samples)
    if not are_floats:
        return math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    if high <= low:
        high = low + 1
    return float(f"{low:.5g}"), float(f"{high:.5g}")
