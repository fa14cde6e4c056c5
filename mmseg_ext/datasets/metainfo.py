"""A config's data: parts of wrappers, classes and palette, channels of the images."""

from collections.abc import Iterator, Mapping
from typing import Any

from mmseg_ext.errors import LaunchError


def inner_datasets(dataset: Any) -> Iterator[Any]:
    """Yield the datasets inside wrappers, or for settings, the settings of these datasets."""
    values = dataset if isinstance(dataset, Mapping) else getattr(dataset, "__dict__", {})
    # `inner` is an attribute of `SeededSamples`.
    found = values.get("datasets") or [values.get("inner"), values.get("dataset")]
    inner = [part for part in found if part is not None and not isinstance(part, str)]
    if not inner:
        yield dataset
    for part in inner:
        yield from inner_datasets(part)


def type_name(settings: Mapping) -> str:
    """Return the name of the `type`: of a class, or of a string without a scope or module."""
    kind = settings["type"]
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def crop_size(config: Any) -> tuple[int, int]:
    """Return (height, width) of a config's crops; raise LaunchError if it has none."""
    size = config.get("crop_size") or (config.model.get("data_preprocessor") or {}).get("size")
    if size is None:
        raise LaunchError(f"{config.filename}: has no crop_size; add crop_size = (HEIGHT, WIDTH)")
    return tuple(size)


def input_channels(model: Mapping) -> int:
    """Return the channels of the images that the network of a config's `model` takes."""
    return model.get("backbone", {}).get("in_channels", 3)


def classes_and_palette(settings: dict) -> dict:
    """Return `classes` and `palette` of the dataset that `settings` describe.

    They are the class's METAINFO, changed by `metainfo` in the settings. The dataset is not built,
    because its files may be on another machine, and some classes look for them when they are built.

    Raises:
        ValueError: if the type is unknown, or neither place names classes.
    """
    from mmseg.datasets import BaseSegDataset  # `inner_datasets` works without mmsegmentation
    from mmseg.registry import DATASETS

    settings = next(inner_datasets(settings))
    kind = settings["type"]
    kind = DATASETS.get(kind) if isinstance(kind, str) else kind
    if kind is None:
        raise ValueError(f"there is no dataset of type {settings['type']!r}")

    class WithoutFiles(BaseSegDataset):
        METAINFO = kind.METAINFO

    meta = WithoutFiles(metainfo=settings.get("metainfo"), lazy_init=True).metainfo
    if not meta.get("classes"):
        raise ValueError(f"{settings['type']} has no classes; set its metainfo=dict(classes=...)")
    return {"classes": tuple(meta["classes"]), "palette": meta["palette"]}
