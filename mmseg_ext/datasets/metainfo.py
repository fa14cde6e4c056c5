"""What a config says of a dataset, without its files: the classes and the palette."""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace

from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from mmseg_ext.datasets.checked_dataset import CheckedDataset


def unwrapped(settings: dict) -> dict:
    """The settings of the dataset that reads files: of several in a wrapper, the first's."""
    while "dataset" in settings or "datasets" in settings:
        settings = settings["dataset"] if "dataset" in settings else settings["datasets"][0]
    return settings


def tell_class_counts(config: dict) -> None:
    """Give every `CheckedLoadAnnotations` of a stock dataset the number of its classes.

    Samples of this package's datasets carry it; of others the settings tell, in place.
    """
    loaders = [config.get(f"{split}_dataloader") or {} for split in ("train", "val", "test")]
    for settings in (leaf for x in loaders if x.get("dataset") for leaf in leaves(x["dataset"])):
        kind = DATASETS.get(settings["type"]) if isinstance(settings.get("type"), str) else None
        if not isinstance(kind, type) or issubclass(kind, CheckedDataset):
            continue
        for step in transforms(settings.get("pipeline") or ()):
            if _counts_classes(step) and (classes := _class_names(kind, settings)):
                step["num_classes"] = len(classes)


def _class_names(kind: type, settings: dict) -> Sequence[str]:
    return kind._load_metainfo(settings.get("metainfo")).get("classes") or ()


def leaves(dataset: dict) -> Iterator[dict]:
    """The settings of the datasets that read files, out of wrappers such as ConcatDataset."""
    inner = list(dataset.get("datasets") or ())
    if isinstance(dataset.get("dataset"), dict):
        inner.append(dataset["dataset"])
    if not inner:
        yield dataset
    for part in inner:
        yield from leaves(part)


def transforms(pipeline: Iterable) -> Iterator[dict]:
    """The transforms of a pipeline, those nested in TestTimeAug and its like included."""
    for transform in pipeline:
        if isinstance(transform, dict):
            yield transform
            yield from transforms(transform.get("transforms") or ())
        elif isinstance(transform, list | tuple):
            yield from transforms(transform)


def _counts_classes(step: dict) -> bool:
    kind = str(step.get("type")).rpartition(".")[2]
    return kind == "CheckedLoadAnnotations" and step.get("num_classes") is None


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
