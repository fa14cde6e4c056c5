"""What mmengine saves beside tensors, its logged numbers and NumPy's values, without unpickling.

Checkpoints of mmengine's own Runner hold pickled `HistoryBuffer`s and NumPy values: `safe_globals`
is what `torch.load(weights_only=True)` must know of them. Ours hold tensors and plain containers
alone, which torch reads without: `to_plain` writes them so, `from_plain` is its inverse.
"""

import argparse
import functools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from torch import Tensor

_MARK = "__plain__"


class _PickledHistory:
    """A pickled `HistoryBuffer` that keeps its numbers; its methods stay the class's own."""

    def __setstate__(self, state: dict) -> None:
        from mmengine.logging import HistoryBuffer

        self.__class__ = HistoryBuffer
        self.__init__(state["_log_history"], state["_count_history"], state["max_length"])


def _method_of_history(kind: object, name: object) -> None:
    """Stands for `getattr`, by which a pickled `HistoryBuffer` names its methods.

    mmengine allows the real one, with which a file reaches, and changes, any module.
    """
    if kind is not _PickledHistory:
        raise UnpicklingError(f"Unsupported value: getattr of {kind!r}")


def _called(function: Callable, path: str) -> Callable:
    """The function under the name that files give it; torch 2.4 goes by the function's own."""

    def alias(*args):
        return function(*args)

    alias.__module__, _, alias.__name__ = path.rpartition(".")
    alias.__qualname__ = alias.__name__
    return alias


_PickledHistory.__module__ = "mmengine.logging.history_buffer"
_PickledHistory.__name__ = _PickledHistory.__qualname__ = "HistoryBuffer"


@functools.cache
def safe_globals() -> list:
    """For `torch.serialization.safe_globals`; none of these runs code of a file."""
    reconstruct, scalar = np.zeros(1).__reduce__()[0], np.float64(1).__reduce__()[0]
    cores = ("numpy.core.multiarray", "numpy._core.multiarray")  # NumPy 1 and 2
    return [
        _PickledHistory,
        _called(_method_of_history, "builtins.getattr"),
        bytes,  # the data of an empty array
        argparse.Namespace,  # published checkpoints keep their script's arguments in one
        *(np.ndarray, np.dtype),
        *{type(np.dtype(code)) for code in "?bhilqBHILQefdFDSU"},
        *(_called(reconstruct, f"{core}._reconstruct") for core in cores),
        *(_called(scalar, f"{core}.scalar") for core in cores),
    ]


def to_plain(value: object, where: str = "", dropped: list[str] | None = None) -> object:
    """`value` with tensors on the CPU and everything else as plain containers.

    An object that has no plain form becomes None; its name and type go to `dropped`.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_MARK: "ndarray", "data": torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, dict):
        plain = OrderedDict() if isinstance(value, OrderedDict) else {}
        for key, item in value.items():
            plain[to_plain(key, where, dropped)] = to_plain(item, f"{where}.{key}", dropped)
        if hasattr(value, "_metadata"):  # a state dict's: the versions of the modules
            plain._metadata = to_plain(value._metadata, where, dropped)
        return plain
    if isinstance(value, (list, tuple)):
        items = [to_plain(item, f"{where}[{i}]", dropped) for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if type(value).__name__ == "HistoryBuffer":
        values, counts = (torch.from_numpy(np.array(part)) for part in value.data)
        length = value.max_length
        return {_MARK: "history", "values": values, "counts": counts, "max_length": length}
    for kind in (bool, int, float, str):  # and their subclasses: IntEnum, ...
        if isinstance(value, kind):
            return kind(value)
    if value is None or isinstance(value, (complex, bytes, torch.dtype)):
        return value
    if isinstance(value, Path):
        return str(value)
    if dropped is not None:
        dropped.append(f"{where.lstrip('.')} ({type(value).__name__})")
    return None


def from_plain(value: object) -> object:
    """The inverse of `to_plain`, up to what that dropped."""
    if isinstance(value, dict):
        if value.get(_MARK) == "ndarray":
            return value["data"].cpu().numpy()
        if value.get(_MARK) == "history":
            from mmengine.logging import HistoryBuffer

            values, counts = (value[key].cpu().numpy() for key in ("values", "counts"))
            return HistoryBuffer(values, counts, value["max_length"])
        for key, item in value.items():
            value[key] = from_plain(item)
    elif isinstance(value, (list, tuple)):
        return type(value)(from_plain(item) for item in value)
    return value
