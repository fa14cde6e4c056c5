"""What a config says of a dataset, without its files: the classes and the palette."""

from collections.abc import Iterable, Iterator

from mmseg.registry import DATASETS

from mmseg_ext import upstream


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

    They are the class's METAINFO, changed by `metainfo` in the settings. Nothing is built, as the
    data may be on another machine.

    Raises:
        ValueError: for an unknown type, and if neither place names classes.
    """
    settings = unwrapped(settings)
    kind = DATASETS.get(settings["type"])
    if kind is None:
        raise ValueError(f"there is no dataset of type {settings['type']!r}")
    classes, palette = upstream.classes_and_palette(kind, settings.get("metainfo"))
    if not classes:
        raise ValueError(
            f"{settings['type']} has no classes: name them in the dataset's metainfo=dict(...)"
        )
    return {"classes": classes, "palette": palette}
