"""What a config says of a dataset, without its files: the classes and the palette."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace

from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS


def leaves(dataset: dict) -> Iterator[dict]:
    """The settings of the datasets that read files, out of wrappers such as ConcatDataset."""
    inner = list(dataset.get("datasets") or ())
    if isinstance(dataset.get("dataset"), dict):
        inner.append(dataset["dataset"])
    if not inner:
        yield dataset
    for part in inner:
        yield from leaves(part)


def unwrapped(settings: dict) -> dict:
    """The settings of the first dataset that reads files."""
    return next(leaves(settings))


def transforms(pipeline: Iterable) -> Iterator[dict]:
    """The transforms of a pipeline, those nested in TestTimeAug and its like included."""
    for transform in pipeline:
        if isinstance(transform, dict):
            yield transform
            yield from transforms(transform.get("transforms") or ())
        elif isinstance(transform, list | tuple):
            yield from transforms(transform)


def classes_and_palette(settings: dict) -> dict:
    """`classes` and `palette` of the dataset that `settings` describe, as building it gives them.

    They are the class's METAINFO, changed by `metainfo` in the settings. mmsegmentation's rule
    completes a palette that is left out or has more colours than there are classes. Nothing is
    built, as the data may be on another machine.

    Raises:
        ValueError: for an unknown type, and if neither place names classes.
    """
    settings = unwrapped(settings)
    kind = DATASETS.get(settings["type"])
    if kind is None:
        raise ValueError(f"there is no dataset of type {settings['type']!r}")
    meta = kind._load_metainfo(settings.get("metainfo"))
    if not meta.get("classes"):
        raise ValueError(
            f"{settings['type']} has no classes: name them in the dataset's metainfo=dict(...)"
        )
    partial = SimpleNamespace(_metainfo=meta, label_map=kind.get_label_map(meta["classes"]))
    return {
        "classes": tuple(meta["classes"]),
        "palette": BaseSegDataset._update_palette(partial),
    }
