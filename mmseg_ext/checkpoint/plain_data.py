"""Tensors and plain containers alone: what `torch.load(weights_only=True)` reads back.

mmengine's checkpoints hold its `HistoryBuffer`s and NumPy values, which it reads by running a
pickle. `to_plain` writes these as tensors under a mark, `from_plain` makes them again.
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_MARK = "__plain__"


def to_plain(value: object, where: str = "", dropped: list[str] | None = None) -> object:
    """`value` with tensors on the CPU and everything else as plain containers.

    An object that has no plain form becomes None within a list, and is left out of a mapping; the
    name of each goes to `dropped`.
    """
    dropped = [] if dropped is None else dropped
    plain = _to_plain(value, where, dropped)
    return None if plain is _DROP else plain


_DROP = object()


def _to_plain(value: object, where: str, dropped: list[str]) -> object:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_MARK: "ndarray", "data": torch.from_numpy(np.ascontiguousarray(value))}
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    for kind in (bool, int, float, str):  # subclasses: IntEnum, ...
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (torch.Size, torch.dtype)):
        return value if isinstance(value, torch.dtype) else tuple(value)
    if isinstance(value, dict):
        return _mapping(value, where, dropped)
    if isinstance(value, (list, tuple)):
        items = [_to_plain(item, f"{where}[{i}]", dropped) for i, item in enumerate(value)]
        items = [None if item is _DROP else item for item in items]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, (set, frozenset)):
        items = [_to_plain(item, where, dropped) for item in sorted(value, key=repr)]
        return {_MARK: "set", "items": [item for item in items if item is not _DROP]}
    if type(value).__name__ == "HistoryBuffer":
        values, counts = value.data
        return {
            _MARK: "history",
            "values": torch.from_numpy(np.array(values)),
            "counts": torch.from_numpy(np.array(counts)),
            "max_length": value.max_length,
        }
    dropped.append(f"{where} ({type(value).__name__})")
    return _DROP


def _mapping(value: dict, where: str, dropped: list[str]) -> dict:
    result = OrderedDict() if isinstance(value, OrderedDict) else {}
    for key, item in value.items():
        plain = _to_plain(item, f"{where}.{key}".lstrip("."), dropped)
        if plain is not _DROP:
            result[_to_plain(key, where, dropped)] = plain
    metadata = getattr(value, "_metadata", None)
    if metadata is not None and isinstance(result, OrderedDict):
        result._metadata = _to_plain(metadata, where, dropped)  # versions of the modules
    return result


def from_plain(value: object) -> object:
    """The inverse of `to_plain`, up to what it dropped."""
    if isinstance(value, dict):
        if value.get(_MARK) == "ndarray":
            return value["data"].cpu().numpy()
        if value.get(_MARK) == "set":
            return set(value["items"])
        if value.get(_MARK) == "history":
            return _history(value)
        for key, item in value.items():
            value[key] = from_plain(item)
        return value
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if type(value) is tuple:
        return tuple(from_plain(item) for item in value)
    return value


def _history(value: dict) -> object:
    from mmengine.logging import HistoryBuffer

    return HistoryBuffer(
        value["values"].cpu().numpy(), value["counts"].cpu().numpy(), value["max_length"]
    )
