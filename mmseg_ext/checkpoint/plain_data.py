"""The content of checkpoints as plain data: `to_plain` before saving, `rebuild` after reading.

torch's weights-only unpickler lets a file set attributes of the `OrderedDict`s, `Counter`s and
tensors in it. NumPy and others trust such attributes: `__array_interface__` is a memory address. So
`rebuild` copies what was read into objects of known types, and nothing is used before that.

Classes of NumPy and mmengine take no part in unpickling either: `STAND_INS` only record how a file
wants them built, and `rebuild` builds them from checked values.
"""

import re
from collections import Counter, OrderedDict
from typing import Any, Literal

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

_MARK = "__plain__"
_LEAVES = {str, int, float, bool, complex, bytes, bytearray, type(None)}
_LEAVES |= {torch.dtype, torch.device, torch.layout}
_NUMBERS = re.compile("b1|[iu][1248]|f[248]|c8|c16")  # NumPy's codes: i8 for int64


class _StandIn:
    """An object or a call that a file asks for, recorded and not executed."""

    arguments: tuple = ()
    state: Any = None

    def __new__(cls, *arguments: object):
        self = super().__new__(cls)
        self.arguments = arguments
        return self

    def __setstate__(self, state: object) -> None:
        self.state = state


def _stand_in(path: str) -> type[_StandIn]:
    """Return a stand-in that `torch.serialization.add_safe_globals` registers as `path`."""
    module, _, name = path.rpartition(".")
    return type(name, (_StandIn,), {"__module__": module, "__qualname__": name})


_HISTORY = _stand_in("mmengine.logging.history_buffer.HistoryBuffer")
_NAMESPACE = _stand_in("argparse.Namespace")  # the arguments of a published training script
_BYTES = _stand_in("builtins.bytes")  # called without arguments for the data of an empty array
_DTYPE = _stand_in("numpy.dtype")
_ARRAYS = [  # of NumPy 1 and 2
    _stand_in("numpy.core.multiarray._reconstruct"),
    _stand_in("numpy._core.multiarray._reconstruct"),
]
_SCALARS = [
    _stand_in("numpy.core.multiarray.scalar"),
    _stand_in("numpy._core.multiarray.scalar"),
]
# A `HistoryBuffer` refers to its methods by `getattr`; they are not needed.
_UNUSED = [_stand_in("builtins.getattr"), _stand_in("numpy.ndarray")]

STAND_INS: list[Any] = [_HISTORY, _NAMESPACE, _BYTES, _DTYPE] + _ARRAYS + _SCALARS + _UNUSED


class UnknownType(TypeError):
    """A value in a checkpoint that is neither a tensor nor plain data."""


def rebuild(value: Any, trusted: bool = False) -> Any:
    """Copy what was read to objects of known types only.

    These are numbers, strings, dense tensors, containers, NumPy's numeric arrays and mmengine's
    `HistoryBuffer`s; an `argparse.Namespace` becomes a dict. Tensors share their storage with
    `value`. The data that `to_plain` marked gets its type back.

    Args:
        trusted: keep values of other types instead of raising.

    Raises:
        UnknownType: for a value of another type.
        ValueError: for values that do not fit together.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind in (Tensor, nn.Parameter):
        # Not `value.detach`: an attribute of the tensor can hide its methods.
        value = Tensor.detach(value)  # a new object, without attributes
        other = value.is_meta or value.is_nested or value.is_quantized
        if other or value.layout != torch.strided:
            raise ValueError("a tensor that is sparse, nested, quantized or without data")
        # A byte other than 0 and 1 makes NumPy and torch count and index wrongly.
        if value.dtype == torch.bool:
            return value.view(torch.uint8).ne(0)
        return value
    if kind in (dict, OrderedDict, Counter):
        return _mapping(value, trusted)
    if kind in (list, tuple, set, torch.Size):
        return kind([rebuild(item, trusted) for item in value])
    if kind is _BYTES and not value.arguments:
        return b""
    if kind is _NAMESPACE:
        return rebuild(value.state, trusted)
    if kind in _ARRAYS:
        _, shape, dtype, fortran, data = value.state
        return _array(rebuild(shape), dtype, rebuild(data), "F" if fortran is True else "C")
    if kind in _SCALARS:
        dtype, data = value.arguments
        return _array((), dtype, rebuild(data))[()]
    if kind is _HISTORY:
        values = rebuild(value.state["_log_history"])
        counts = rebuild(value.state["_count_history"])
        return _history(values, counts, value.state["max_length"])
    if trusted:
        return value
    raise UnknownType(f"an object of type {kind.__name__}")


def _mapping(value: dict, trusted: bool) -> Any:
    # `dict.items`, since an `OrderedDict` from a file can have an attribute `items`.
    pairs = [(rebuild(key, trusted), rebuild(item, trusted)) for key, item in dict.items(value)]
    items: dict[Any, Any] = dict(pairs)
    if items.get(_MARK) == "ndarray":
        return items["data"].cpu().numpy()
    if items.get(_MARK) == "history":
        values, counts = items["values"].cpu().numpy(), items["counts"].cpu().numpy()
        return _history(values, counts, items["max_length"])
    if type(value) is dict:
        return items
    copy: Any = type(value)(items)
    metadata = vars(value).get("_metadata")  # of a state dict: the modules' versions
    if type(metadata) in (dict, OrderedDict):
        copy._metadata = rebuild(metadata, trusted)
    return copy


def _array(shape: Any, dtype: object, data: object, order: Literal["C", "F"] = "C") -> np.ndarray:
    """Return a new array; the stand-ins guarantee nothing about the arguments."""
    is_shape = type(shape) is tuple and all(type(side) is int for side in shape)
    if type(data) is not bytes or not is_shape:
        raise ValueError("an array without shape or data")
    code = dtype.arguments[0] if isinstance(dtype, _DTYPE) and dtype.arguments else None
    if type(code) is not str or not _NUMBERS.fullmatch(code):
        raise UnknownType("an array of other values than numbers")
    # NumPy's state of a dtype: (version, byte order, ...)
    state: Any = dtype.state  # type: ignore  # of a `_DTYPE`
    swapped = type(state) is tuple and state[1:2] == (">",)
    array = np.ndarray(shape, (">" if swapped else "<") + code, data, order=order)
    if code == "b1":
        return array.view(np.uint8) != 0
    return array.astype(code, order=order)


def _history(values: object, counts: object, max_length: object) -> HistoryBuffer:
    for part in (values, counts):
        if type(part) is not np.ndarray or part.dtype.kind not in "iuf" or part.ndim != 1:
            raise ValueError("a history of other values than numbers")
    if type(max_length) is not int or max_length < 1:
        raise ValueError(f"a history of length {max_length!r}")
    return HistoryBuffer(values, counts, max_length)  # type: ignore  # it accepts arrays


def to_plain(value: Any, where: str, dropped: list[str]) -> Any:
    """Return `value` with tensors on the CPU and everything else as plain containers.

    An object without a plain form becomes None; its name and type are added to `dropped`.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_MARK: "ndarray", "data": torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, HistoryBuffer):
        values, counts = value.data
        return {
            _MARK: "history",
            "values": torch.from_numpy(np.array(values)),
            "counts": torch.from_numpy(np.array(counts)),
            "max_length": value.max_length,
        }
    if isinstance(value, dict):
        plain: Any = OrderedDict() if isinstance(value, OrderedDict) else {}
        for key, item in value.items():
            made = to_plain(item, f"{where}.{key}", dropped)
            if made is not None or item is None:  # loading must not replace what is left out
                plain[to_plain(key, where, dropped)] = made
        metadata = getattr(value, "_metadata", None)  # of a state dict: the modules' versions
        if metadata is not None:
            plain._metadata = to_plain(metadata, where, dropped)
        return plain
    if isinstance(value, (list, tuple)):
        items = []
        for i, item in enumerate(value):
            items.append(to_plain(item, f"{where}[{i}]", dropped))
        return tuple(items) if isinstance(value, tuple) else items
    for kind in (bool, int, float, str):  # and their subclasses: IntEnum, ...
        if isinstance(value, kind):
            return kind(value)
    if type(value) in _LEAVES:
        return value
    dropped.append(f"{where} ({type(value).__name__})")
    return None
