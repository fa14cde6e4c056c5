"""How a test pipeline scales images.

`Resize` fits an image of any size into a scale, such as 512x512. It would fit a tile, too, and the
network would see the tile at another scale than its image. Here tiles get the factors of their
image, or of the nearest training image if no training image was as long or as short.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmseg.registry import TRANSFORMS

from mmseg_ext.engine.config import type_name

Sides = Sequence[int]  # the shortest and the longest long side of the training images
# Factors that differ more are another scale than training, which varies sizes by 1.25 itself.
MOST = 1.5


def blank_image(sample: dict, sides: Sides | None = None) -> dict:
    """Return a sample with zeros for its image, as large as the image.

    With `sides`, an image that is longer or shorter than the training images gets the nearest of
    their long sides, in its own proportions.
    """
    image = sample["img"]
    long = max(image.shape[:2])
    side = long if sides is None else min(max(long, sides[0]), sides[1])
    size = tuple(max(1, round(length * side / long)) for length in image.shape[:2])
    blank = np.zeros((*size, *image.shape[2:]), image.dtype)
    return {**sample, "img": blank, "img_shape": size, "ori_shape": size}


def scale_factors(pipeline: Sequence[dict], sample: dict) -> tuple[float, float]:
    """Return width and height of the network's input, divided by the sizes of the sample's image.

    Args:
        pipeline: transforms after the loader.
        sample: the result of the loader.
    """
    height, width = sample["img"].shape[:2]
    for settings in pipeline:
        sample = _measured(settings, sample)
    seen_height, seen_width = sample["img"].shape[:2]
    return seen_width / width, seen_height / height


def scaled_like(pipeline: Sequence[dict], sample: dict) -> list[dict]:
    """Return a pipeline that scales the tiles of an image by the factors that the image has.

    Raises:
        ValueError: for a transform that changes the size of images, and is not a `Resize`.
    """
    fixed: list[dict] = []
    for settings in pipeline:
        name = type_name(settings)
        if name == "TestTimeAug":
            choices = []
            for choice in settings["transforms"]:
                views: list[dict] = []
                for view in choice:
                    views += scaled_like([view], sample)
                choices.append(views)
            fixed.append({**settings, "transforms": choices})
            continue
        before, sample = sample, _measured(settings, sample)
        if "Resize" in name and (settings.get("scale") or not settings.get("scale_factor")):
            options = {
                key: settings[key] for key in ("interpolation", "backend") if key in settings
            }
            factors = scale_factors([settings], before)
            settings = {"type": "Resize", "scale_factor": factors, **options}
        elif "Resize" not in name and sample["img"].shape[:2] != before["img"].shape[:2]:
            raise ValueError(
                f"tile: {name} in the test pipeline changes the size of images, and of tiles in "
                "another way; predict without tile"
            )
        fixed.append(settings)
    return fixed


def scale_note(
    pipeline: Sequence[dict], sample: dict, sides: Sides | None, seen: Sequence[float], tta: bool
) -> str:
    """Return a note if the network sees an image at another scale than the training images.

    Images with about as many pixels as those are not measured, unless they are augmented.

    Args:
        pipeline: of the test, after the loader.
        sample: the result of the loader.
        sides: of the training images; without them the pipeline tells their scale.
        seen: width of the network's input per width of the image, for each view.
        tta: whether test-time augmentation made the views.
    """
    path, long = sample["img_path"], max(sample["img"].shape[:2])
    low, high = sides or (long, long)
    if not tta and low / MOST <= long <= high * MOST:
        return ""
    expected = scale_factors(pipeline, blank_image(sample, sides))[0]
    if min(seen) / MOST <= expected <= max(seen) * MOST:
        return ""
    if low <= long <= high:
        return (
            f"{path}: tta_pipeline multiplies sizes by {min(seen):.2g} to {max(seen):.2g}, the "
            f"test pipeline by {expected:.2g}; predict without tta, or set `scale` in tta_pipeline"
        )
    return (
        f"{path}: has {long} pixels on its long side, the training images {low} to {high}; the "
        f"network sees it at {seen[0] / expected:.2g} times their scale; if objects have as many "
        f"pixels as there, use --tile {high}, or Predictor(tile={high})"
    )


def described_scale(pipeline: Sequence[dict]) -> tuple[dict, list[str]]:
    """Return how the first `Resize` scales images, and the names of other transforms that may.

    `scale` has limits (width, height) of the size, `scale_factor` factors (width, height) for a
    `Resize` without limits. With `keep_ratio` both sides get one factor.
    """
    others = [type_name(settings) for settings in pipeline if _may_change_size(settings)]
    found: dict[str, Any] = {"scale": None, "scale_factor": None, "keep_ratio": True}
    for settings in pipeline:
        if type_name(settings) == "Resize":
            others.remove("Resize")
            found["keep_ratio"] = settings.get("keep_ratio", False)
            for key in ("scale", "scale_factor"):
                value = settings.get(key)
                found[key] = [value, value] if isinstance(value, int | float) else value
            break
    return found, others


def _measured(settings: dict, sample: dict) -> dict:
    """Return a sample after a transform, if that may change the size of its image."""
    if not _may_change_size(settings):
        return sample
    transform: Any = TRANSFORMS.build(dict(settings))
    after = transform(dict(sample))
    return after if "img" in after else sample  # a transform that packs the image is the last


def _may_change_size(settings: dict) -> bool:
    """Return whether a transform resizes, has other transforms inside, or is of another package."""
    name, kind = type_name(settings), settings["type"]
    if isinstance(kind, str):
        kind = TRANSFORMS.get(kind)
    is_known = kind is not None and kind.__module__.split(".")[0] in ("mmcv", "mmseg", "mmseg_ext")
    return "Resize" in name or "transforms" in settings or not is_known
