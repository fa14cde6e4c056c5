"""Views of test-time augmentation that training did not show: flips, scales and turns.

A network knows nothing of views that training never showed. Where left and right are classes, a
mirrored view makes the mean of the views worse than the prediction of the image.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

from mmseg_ext.engine.config import as_list, inner_datasets, settings_inside, type_name

_TURNS = ("RandomRotate", "RandomRotFlip")
_ALIKE = 1.5  # a smaller ratio of scales is no other view, as in a prediction


def _transforms(pipeline: Any) -> Iterator[Mapping]:
    """Yield the settings of all transforms, also of those inside others."""
    for _, value in settings_inside("", pipeline):
        if isinstance(value, Mapping) and "type" in value:
            yield value


def _training_transforms(cfg: Config) -> list[Mapping]:
    settings = (cfg.get("train_dataloader") or {}).get("dataset") or {}
    found = []
    for dataset in inner_datasets(settings):
        found.extend(_transforms(dataset.get("pipeline") or []))
    return found


def _flips(transforms: list[Mapping]) -> set[str]:
    """Return the directions in which images are flipped with some probability."""
    directions = set()
    for step in transforms:
        if type_name(step) == "RandomFlip" and any(as_list(step.get("prob"))):
            directions.update(as_list(step.get("direction", "horizontal")))
        elif type_name(step) == "RandomRotFlip":
            directions |= {"horizontal", "vertical"}
    return directions


def _scales(transforms: list[Mapping]) -> tuple[float, float, str]:
    """Return the lowest and highest scale of training images, and their key.

    With 'scale' they are the longer side in pixels, with 'scale_factor' they multiply the image's
    size. An empty key is for sizes that cannot be compared.
    """
    for step in transforms:
        kind = type_name(step)
        low, high = step.get("ratio_range", (1.0, 1.0))
        if kind == "RandomRatioScale":
            return min(step["ratios"]), max(step["ratios"]), "scale_factor"
        if kind in ("Resize", "RandomResize") and "scale" in step:
            side = _side(step["scale"])
            return low * side, high * side, "scale"
        if kind == "Resize" and isinstance(step.get("scale_factor"), int | float):
            return step["scale_factor"], step["scale_factor"], "scale_factor"
        if "Resize" in kind or "Scale" in kind:  # several sizes, or of another package
            return 1.0, 1.0, ""
    return 1.0, 1.0, "scale_factor"


def _side(scale: Any) -> float:
    return max(scale) if isinstance(scale, list | tuple) else scale


def unseen_views(cfg: Config) -> str:
    """Return a line about views of `tta_pipeline` that training does not show, otherwise ''."""
    seen, views = _training_transforms(cfg), list(_transforms(cfg.get("tta_pipeline") or []))
    if not seen:  # a config for testing only
        return ""
    unseen = [f"{direction} flips" for direction in sorted(_flips(views) - _flips(seen))]
    low, high, key = _scales(seen)
    for step in views:
        if type_name(step) == "Resize" and key in step:
            scale = _side(step[key])
            if not low / _ALIKE <= scale <= high * _ALIKE:
                unseen.append(f"{key} {scale:g}")
    kinds = {type_name(step) for step in seen}
    for step in views:
        if type_name(step) in _TURNS and not kinds.intersection(_TURNS):
            unseen.append(type_name(step))
    if not unseen:
        return ""
    return (
        f"tta_pipeline: training shows no {', '.join(dict.fromkeys(unseen))}, so these views can "
        "lower the score; remove them from tta_pipeline, or train with them"
    )


def merging_model(cfg: Config) -> dict[str, Any]:
    """Return the settings of the model that merges views, without its `module`.

    They have the classes that a flip of training exchanges, such as left and right hands.
    """
    settings = dict(cfg.get("tta_model") or {"type": "StreamingSegTTAModel"})
    if type_name(settings) == "StreamingSegTTAModel":
        for step in _training_transforms(cfg):
            if type_name(step) == "RandomFlip" and step.get("swap_seg_labels"):
                settings.setdefault("swap_seg_labels", step["swap_seg_labels"])
    return settings
