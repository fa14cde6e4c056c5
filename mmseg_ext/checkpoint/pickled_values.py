"""What mmengine's own Runner pickles beside tensors, rebuilt as plain data by code of this module.

Its checkpoints hold `HistoryBuffer`s and NumPy scalars and arrays. The names under which a pickle
asks for these are answered by the functions and classes below, which take numbers, strings and
bytes and give nothing that a file could call: no code of NumPy or mmengine runs for the file.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import NoReturn

import numpy as np
import torch

_DTYPE = re.compile(r"[biufcSU]\d{1,6}")  # numbers, bytes and text; no objects, no records


def _refuse(what: object) -> NoReturn:
    raise UnpicklingError(f"Unsupported value: {str(what)[:80]}")


class PickledDtype:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: str, align: bool = False, copy: bool = True):
        if not (isinstance(code, str) and _DTYPE.fullmatch(code)):
            _refuse(f"numpy.dtype({code!r})")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            _refuse(f"numpy.dtype of byte order {order!r}")
        self.dtype = self.dtype.newbyteorder(order)


class PickledArray:
    """Stands for `numpy.ndarray`; `value` is the array."""

    value: np.ndarray

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, by_columns, data = state
        self.value = _array(dtype, data, shape, by_columns)


class PickledHistory:
    """Stands for mmengine's `HistoryBuffer`."""

    def __setstate__(self, state: dict) -> None:
        values, counts = state["_log_history"].value, state["_count_history"].value
        if values.dtype.kind not in "biuf" or counts.dtype.kind not in "biuf":
            _refuse("HistoryBuffer of other values than numbers")
        self.values, self.counts, self.max_length = values, counts, int(state["max_length"])

    @property
    def value(self):
        from mmengine.logging import HistoryBuffer

        return HistoryBuffer(self.values, self.counts, self.max_length)


def _array(dtype: object, data: object, shape: tuple, by_columns: bool = False) -> np.ndarray:
    if type(dtype) is not PickledDtype or not isinstance(data, bytes):
        _refuse("numpy values that are no bytes")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"numpy array of shape {shape}")
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise ValueError(f"numpy array of shape {shape} in {len(data)} bytes")
    values = np.frombuffer(data, dtype.dtype) if data else np.empty(0, dtype.dtype)
    return values.reshape(shape, order="F" if by_columns else "C").copy()


def _empty_array(kind: object, shape: object, code: object) -> PickledArray:
    """Stands for `numpy.core.multiarray._reconstruct`."""
    if kind is not PickledArray:
        _refuse(kind)
    return PickledArray()


def _scalar(dtype: object, data: object) -> object:
    """Stands for `numpy.core.multiarray.scalar`; gives Python's own number or text."""
    return _array(dtype, data, ()).item()


def _no_bytes(*arguments: object) -> bytes:
    """Stands for `bytes`, as which a pickle has the data of an empty array."""
    return b"" if not arguments else _refuse(f"bytes of {len(arguments)} arguments")


def _method_of_history(kind: object, name: object) -> None:
    """Stands for `getattr`, by which a `HistoryBuffer` names its methods: they are not needed."""
    if kind is not PickledHistory or not isinstance(name, str):
        _refuse(f"getattr of {kind!r}")


_STAND_INS = [
    (PickledDtype, "numpy.dtype"),
    (PickledArray, "numpy.ndarray"),
    (PickledHistory, "mmengine.logging.history_buffer.HistoryBuffer"),
    (_method_of_history, "builtins.getattr"),
    (_no_bytes, "builtins.bytes"),
    *((f, f"numpy.{core}.multiarray.{name}")
      for core in ("core", "_core")
      for f, name in ((_empty_array, "_reconstruct"), (_scalar, "scalar"))),
]  # fmt: skip


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Within the context `torch.load(weights_only=True)` takes these values and no others.

    What somebody else of the process has allowed is not allowed here.
    """
    others = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(_STAND_INS)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(others)
