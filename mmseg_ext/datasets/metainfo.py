"""Classes and palette of a config's datasets, without their files."""

from mmseg.registry import DATASETS

from mmseg_ext import upstream
from mmseg_ext.datasets.wrappers import inner_datasets

# Okabe and Ito's colors, which color-blind people can tell apart, after gray for the background.
_COLORS = ((80, 80, 80), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66))
_COLORS += ((0, 114, 178), (213, 94, 0), (204, 121, 167))


def classes_and_palette(settings: dict) -> dict:
    """Return `classes` and `palette` of the dataset that `settings` describe.

    They are the class's METAINFO, changed by `metainfo` in the settings. The dataset is not built,
    because its files may be on another machine.

    Raises:
        ValueError: if the type is unknown, or neither place names classes.
    """
    settings = next(inner_datasets(settings))
    kind = DATASETS.get(settings["type"])
    if kind is None:
        raise ValueError(f"there is no dataset of type {settings['type']!r}")
    classes, palette = upstream.classes_and_palette(kind, settings.get("metainfo"))
    if not classes:
        raise ValueError(f"{settings['type']} has no classes; set its metainfo=dict(classes=...)")
    return {"classes": classes, "palette": palette}


def distinct_colors(count: int) -> list[list[int]]:
    """Return fixed RGB colors for `count` classes; from the ninth on they are darker."""
    numbers = [(i - 1) % 7 + 1 if i else 0 for i in range(count)]
    shades = [1 - 0.8 * (max(0, i - 1) // 7 * 0.618 % 1) for i in range(count)]
    pairs = zip(numbers, shades, strict=True)
    return [[round(part * shade) for part in _COLORS[number]] for number, shade in pairs]
