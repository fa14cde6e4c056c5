"""What is inside wrappers of datasets, such as ConcatDataset; mmsegmentation is not needed."""

from collections.abc import Iterator, Mapping
from typing import Any


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
