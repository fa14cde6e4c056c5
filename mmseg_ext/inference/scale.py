"""How a test pipeline scales images.

`Resize` fits an image of any size into a scale, such as 512x512. A tile alone would be fitted, too,
and the network would see it at another scale than its image. Here tiles get the factor of their
image, and images get the factor of the training if their size is none of the training images'.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmseg.registry import TRANSFORMS

from mmseg_ext.engine.config import type_name

Sides = Sequence[int]  # the shortest and the longest long side of the training images
STOCK = ("mmcv", "mmseg", "mmseg_ext")  # only `Resize...` of these packages scales images
# An image is at another scale than training if the factors differ more than this. Training itself
# varies them by 1.25.
MOST = 1.5


def blank_image(sample: dict, sides: Sides | None = None) -> dict:
    """Return a sample with zeros for its image, which need no memory until they are written.

    With `sides` an image that is larger or smaller than the training images gets the nearest of
    their sizes; it keeps its proportions.
    """
    image = sample["img"]
    long = max(image.shape[:2])
    side = long if sides is None else min(max(long, sides[0]), sides[1])
    size = tuple(max(1, round(length * side / long)) for length in image.shape[:2])
    blank = np.zeros((*size, *image.shape[2:]), image.dtype)
    return {**sample, "img": blank, "img_shape": size, "ori_shape": size}


def scale_factors(pipeline: Sequence[dict], sample: dict) -> tuple[float, float]:
    """Return (width, height) of the network's input divided by those of the sample's image."""
    height, width = sample["img"].shape[:2]
    for settings in pipeline:
        sample = _measured(settings, sample)
    seen_height, seen_width = sample["img"].shape[:2]
    return seen_width / width, seen_height / height


def scaled_like(pipeline: Sequence[dict], sample: dict) -> list[dict]:
    """Return a pipeline that scales the tiles of an image by the factors that the image has.

    Args:
        pipeline: transforms after the one that loads the image.
        sample: the image as the first of them gets it.

    Raises:
        ValueError: for a transform of another package that changes the size of images.
    """
    fixed: list[dict] = []
    for settings in pipeline:
        if type_name(settings) == "TestTimeAug":
            choices = []
            for choice in settings["transforms"]:
                views = []
                for view in choice:
                    views += scaled_like([view], sample)
                choices.append(views)
            fixed.append({**settings, "transforms": choices})
            continue
        before, sample = sample, _measured(settings, sample)
        changed = sample["img"].shape[:2] != before["img"].shape[:2]
        if _fits(settings):
            settings = _by_factors(settings, scale_factors([settings], before))
        elif changed and not _is_stock(settings):
            raise ValueError(
                f"tile: {type_name(settings)} in the test pipeline changes the size of images, and "
                "of tiles in another way; predict without tile"
            )
        fixed.append(settings)
    return fixed


def other_scale(pipeline: Sequence[dict], sample: dict, sides: Sides) -> str:
    """Return a note if the network sees an image at another scale than the training images."""
    image = blank_image(sample)
    seen = scale_factors(pipeline, image)[0]
    trained = scale_factors(pipeline, blank_image(sample, sides))[0]
    ratio = seen / trained
    if 1 / MOST <= ratio <= MOST:
        return ""
    low, high = sides
    return (
        f"{sample['img_path']}: has {max(image['img'].shape[:2])} pixels on its long side, the "
        f"training images {low} to {high}; the network sees it at {ratio:.2g} times their scale; "
        f"if objects have as many pixels as there, use --tile {high}, or Predictor(tile={high})"
    )


def small_tile(pipeline: Sequence[dict], sample: dict, tile: int, crop: Sequence[int]) -> str:
    """Return a note if the network sees less of an image in a tile than in a crop of training."""
    factor = min(scale_factors(pipeline, sample))
    least = math.ceil(min(crop) / factor)
    if tile >= least or max(sample["img"].shape[:2]) <= tile:
        return ""
    return (
        f"tile={tile}: the network sees {round(tile * factor)} pixels of it, and {min(crop)} in "
        f"training; use {least} or more if objects at the borders of tiles are wrong"
    )


def described_scale(pipeline: Sequence[dict]) -> tuple[dict, list[str]]:
    """Return how a pipeline scales images, and the names of transforms that this leaves out.

    `scale` are limits (width, height) of the size, `scale_factor` factors (width, height) if there
    are no limits. With `keep_ratio` both sides get one factor.
    """
    found: dict[str, Any] = {"scale": None, "scale_factor": None, "keep_ratio": True}
    others: list[str] = []
    resized = False
    for settings in pipeline:
        name = type_name(settings)
        if name == "Resize" and not resized:
            resized = True
            found["keep_ratio"] = settings.get("keep_ratio", False)
            for key in ("scale", "scale_factor"):
                value = settings.get(key)
                found[key] = [value, value] if isinstance(value, int | float) else value
        elif _is_resize(settings) or not (_is_stock(settings) or name.startswith("Pack")):
            others.append(name)
    return found, others


def _measured(settings: dict, sample: dict) -> dict:
    """Return a sample after a transform, if that can change the size of its image."""
    if not _is_resize(settings) and _is_stock(settings):
        return sample
    transform: Any = TRANSFORMS.build(dict(settings))
    after = transform(dict(sample))
    return after if "img" in after else sample  # one that packs the image is the last


def _by_factors(settings: dict, factors: tuple[float, float]) -> dict:
    """Return the `Resize` that multiplies width and height by `factors`."""
    kept = {}
    for key in ("interpolation", "backend"):
        if settings.get(key):
            kept[key] = settings[key]
    return {"type": "Resize", "scale_factor": factors, **kept}


def _is_stock(settings: dict) -> bool:
    kind = settings["type"]
    if isinstance(kind, str):
        kind = TRANSFORMS.get(kind)
    return kind is not None and kind.__module__.partition(".")[0] in STOCK


def _is_resize(settings: dict) -> bool:
    return "Resize" in type_name(settings)


def _fits(settings: dict) -> bool:
    """Return whether a transform scales images by factors that depend on their size."""
    is_relative = settings.get("scale") is None and settings.get("scale_factor") is not None
    return _is_resize(settings) and not is_relative
