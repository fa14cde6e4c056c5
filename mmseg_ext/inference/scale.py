"""How the test pipeline of a config shows photos, and their tiles, to the network.

`Resize` fits a photo of any size into a scale, such as 512x512. It would fit a tile, too, and the
network would see the tile at another scale than its photo. So tiles get the factors of their photo,
or of the nearest training image if no training image was as long or as short.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmseg.registry import TRANSFORMS

from mmseg_ext.engine.config import inner_datasets, input_channels, type_name
from mmseg_ext.errors import LaunchError
from mmseg_ext.images.seen import Seen


def tested_dataset(config: Any) -> dict:
    """Return the settings of the dataset that a config tests, with its classes and its pipeline.

    Raises:
        LaunchError: if there is none.
    """
    if not config.get("test_dataloader"):
        todo = "add one, whose dataset has classes and a pipeline"
        raise LaunchError(f"{config.filename or 'config'}: has no test_dataloader; {todo}")
    return next(inner_datasets(config.test_dataloader.dataset))


def read_seen(config: Any) -> Seen:
    """Return how the test pipeline of a config shows photos to its network.

    If the pipeline also changes sizes in other ways than by one `Resize`, the attributes of the
    result describe only that, and `size` is right for all; see `undescribed_steps`.
    """
    pipeline = tested_dataset(config)["pipeline"][1:]  # without the loader
    changing = [step for step in pipeline if _may_change_size(step)]
    resizes = [step for step in changing if type_name(step) == "Resize"]
    given: dict[str, Any] = _resize_settings(resizes[0]) if resizes else {}
    sides = config.get("image_sides")  # written by `new_project`
    given["image_sides"] = tuple(sides) if sides else None
    test_cfg = config.model.get("test_cfg") or {}
    if test_cfg.get("mode") == "slide":
        given |= {"window": tuple(test_cfg["crop_size"]), "stride": tuple(test_cfg["stride"])}
    if len(changing) == len(resizes) <= 1:
        return Seen(**given)
    return SeenByTransforms(**given, steps=tuple(changing), channels=input_channels(config.model))


def _resize_settings(step: dict) -> dict[str, Any]:
    """Return the settings of a `Resize` as arguments of `Seen`."""
    pairs = {}
    for key in ("scale", "scale_factor"):
        value = step.get(key)
        pairs[key] = (value, value) if isinstance(value, int | float) else value and tuple(value)
    return {**pairs, "keep_ratio": step.get("keep_ratio", False)}


def undescribed_steps(config: Any) -> list[str]:
    """Return what a test does to loaded photos and the attributes of `Seen` do not describe.

    These are names of transforms, and settings of the data preprocessor.
    """
    found, is_resized = [], False
    for step in tested_dataset(config)["pipeline"][1:]:
        name = type_name(step)
        if name.endswith("LoadAnnotations") or name.startswith("Pack") or step.get("prob") == 0:
            continue
        if name == "Resize" and not is_resized:
            is_resized = True
            for key, usual in (("interpolation", "bilinear"), ("backend", "cv2")):
                if step.get(key, usual) != usual:
                    found.append(f"{name}({key}={step[key]!r})")
            continue
        found.append(name)
    padding = (config.model.get("data_preprocessor") or {}).get("test_cfg") or {}
    for key in ("size", "size_divisor"):
        if padding.get(key):
            found.append(f"data_preprocessor.test_cfg.{key}={padding[key]}")
    return found


@dataclass(frozen=True)
class SeenByTransforms(Seen):
    """How a network sees photos by transforms that the attributes of `Seen` do not describe.

    Attributes:
        steps: settings of the transforms that may change the size of photos.
        channels: of the photos.
    """

    steps: tuple[dict, ...] = ()
    channels: int = 3

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the network's input for a photo."""
        for step in self.steps:
            height, width = _size_after(step, height, width, self.channels)
        return height, width


def resized_as(pipeline: Sequence[dict], height: int, width: int, channels: int = 3) -> list[dict]:
    """Return a pipeline that resizes any image by the factors that an image of this size gets.

    Args:
        pipeline: transforms after the loader, also of test-time augmentation.
        height, width, channels: of the image.

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
                    views += resized_as([view], height, width, channels)
                choices.append(views)
            fixed.append({**settings, "transforms": choices})
            continue
        before = height, width
        height, width = _size_after(settings, height, width, channels)
        if "Resize" in name and (settings.get("scale") or not settings.get("scale_factor")):
            options = {
                key: settings[key] for key in ("interpolation", "backend") if key in settings
            }
            factors = width / before[1], height / before[0]
            settings = {"type": "Resize", "scale_factor": factors, **options}
        elif "Resize" not in name and (height, width) != before:
            raise ValueError(
                f"tile: {name} in the test pipeline changes the size of images, and of tiles in "
                "another way; predict without tile"
            )
        fixed.append(settings)
    return fixed


def _size_after(step: dict, height: int, width: int, channels: int) -> tuple[int, int]:
    """Return the size of an image after a transform; unknown ones get a black image."""
    if type_name(step) == "Resize":
        return Seen(**_resize_settings(step)).size(height, width)
    if not _may_change_size(step):
        return height, width
    transform: Any = TRANSFORMS.build(dict(step))
    size = (height, width)
    black = np.zeros((*size, channels), np.uint8)
    after = transform({"img": black, "img_path": "", "img_shape": size, "ori_shape": size})
    # A transform that packs the image is the last.
    return after["img"].shape[:2] if "img" in after else size


def _may_change_size(step: dict) -> bool:
    """Return whether a transform resizes, has other transforms inside, or is of another package."""
    name, kind = type_name(step), step["type"]
    if isinstance(kind, str):
        kind = TRANSFORMS.get(kind)
    is_known = kind is not None and kind.__module__.split(".")[0] in ("mmcv", "mmseg", "mmseg_ext")
    return "Resize" in name or "transforms" in step or not is_known
