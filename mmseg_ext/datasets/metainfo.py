"""What a config says of a dataset, without its files: the classes and the palette."""

from types import SimpleNamespace

from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS


def unwrapped(settings: dict) -> dict:
    """The settings of the dataset that reads files: of several in a wrapper, the first's."""
    while "dataset" in settings or "datasets" in settings:
        settings = settings["dataset"] if "dataset" in settings else settings["datasets"][0]
    return settings


def classes_and_palette(settings: dict) -> dict:
    """`classes` and `palette` of the dataset that `settings` describe, as building it gives them.

    The class's METAINFO, what `metainfo` in the settings changes of it, and mmsegmentation's rule
    for a palette that is left out or has more colours than there are classes. Nothing is built:
    the data may be on another machine.

    Raises:
        ValueError: for an unknown type, and where neither place names classes.
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
