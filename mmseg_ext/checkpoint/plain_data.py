"""Tensors and plain containers alone: what `torch.load(weights_only=True)` reads back.

mmengine's checkpoints hold its `HistoryBuffer`s and NumPy values, which it reads by running a
pickle. `to_plain` writes these as tensors under a mark, `from_plain` makes them again.
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmseg_ext.checkpoint.pickled_values import PickledArray, PickledHistory

_MARK = "__plain__"
_MOST_DEPTH = 100
_MOST_ITEMS = 10_000_000  # of containers, each counted wherever it stands
_SPARE_BYTES = 2**30  # that views may claim beyond eight times the file's


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
    """The inverse of `to_plain`, up to what it dropped; also of what mmengine itself pickles.

    Raises:
        ValueError: for a mark without its values.
    """
    if isinstance(value, (PickledArray, PickledHistory)):
        return value.value
    if isinstance(value, dict):
        if isinstance(value.get(_MARK), str):
            return _unmarked(value)
        for key, item in value.items():
            value[key] = from_plain(item)
        return value
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if type(value) is tuple:
        return tuple(from_plain(item) for item in value)
    return value


def _unmarked(value: dict) -> object:
    from mmengine.logging import HistoryBuffer

    try:
        if value[_MARK] == "ndarray":
            return value["data"].cpu().numpy()
        if value[_MARK] == "set":
            return set(value["items"])
        if value[_MARK] == "history":
            values, counts = (value[key].cpu().numpy() for key in ("values", "counts"))
            return HistoryBuffer(values, counts, int(value["max_length"]))
    except (AssertionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"damaged {value[_MARK]!r}: {error}") from error
    raise ValueError(f"unknown mark {value[_MARK][:40]!r}")


def check_size(content: object, file_size: int) -> None:
    """That walking through `content`, and copying its tensors, takes bounded time and memory.

    A file of `file_size` bytes can hold containers that hold themselves, or that double at each
    level, tensors that no byte of it stands for, and tensors that show a number terabytes of times.

    Raises:
        ValueError: for these, for tensors without data, and for nesting deeper than 100.
    """
    tensors: dict[int, Tensor] = {}
    items = _count(content, {}, tensors, 0)
    if items > _MOST_ITEMS:
        raise ValueError(f"{items:.3g} items in nested containers")
    stored = {}
    for tensor in tensors.values():
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise ValueError(f"a tensor without plain data ({tensor.layout}, {tensor.device})")
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
    claimed = sum(t.numel() * t.element_size() for t in tensors.values())
    if sum(stored.values()) > file_size or claimed > 8 * file_size + _SPARE_BYTES:
        raise ValueError(f"tensors that claim {claimed:.3g} bytes in a file of {file_size:.3g}")


def _count(value: object, known: dict[int, int], tensors: dict[int, Tensor], depth: int) -> int:
    """Items of `value`, a container as often as it stands there; -1 marks one being counted."""
    if isinstance(value, Tensor):
        tensors[id(value)] = value
        return 1
    if not isinstance(value, (dict, list, tuple, set)):
        return 1
    if depth > _MOST_DEPTH or known.get(id(value)) == -1:
        raise ValueError("containers that hold themselves, or nested more than 100 deep")
    if id(value) not in known:
        known[id(value)] = -1
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        metadata = getattr(value, "_metadata", None)
        parts += [metadata] if metadata is not None else []
        known[id(value)] = 1 + sum(_count(part, known, tensors, depth + 1) for part in parts)
    return known[id(value)]
