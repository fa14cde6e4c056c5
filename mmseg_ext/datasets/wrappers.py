"""What is inside wrappers of datasets, such as ConcatDataset and RepeatDataset."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any


def inner_datasets(dataset: Any) -> Iterator[Any]:
    """Yield the datasets inside wrappers, or for settings, the settings of these datasets."""
    read = dataset.get if isinstance(dataset, Mapping) else partial(_attribute, dataset)
    # `inner` is an attribute of `SeededSamples`.
    found = read("datasets") or [read("inner"), read("dataset")]
    inner = [part for part in found if part is not None and not isinstance(part, str)]
    if not inner:
        yield dataset
    for part in inner:
        yield from inner_datasets(part)


def _attribute(dataset: object, name: str) -> Any:
    return getattr(dataset, name, None)
