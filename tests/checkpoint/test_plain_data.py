"""Values of a checkpoint: known types only, and nothing of a crafted file reaches memory."""

import argparse
import builtins
import enum
import tarfile
import time
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.durable.randomness import random_state, set_random_state
from mmseg_ext.errors import CheckpointError
from tests.engine.states import assert_same
from tests.messages import raises_message


class Pickled:
    """An object that is pickled as a call, and as the state that the result is given."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = function, arguments, state

    def __reduce__(self):
        return self.reduced


def saved(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def history(values: object, counts: object = (1,), length: object = 9) -> HistoryBuffer:
    buffer = HistoryBuffer()
    values, counts = (np.array(v) if type(v) in (list, tuple) else v for v in (values, counts))
    buffer._log_history, buffer._count_history, buffer.max_length = values, counts, length
    return buffer


MEMORY = np.arange(77.0)  # of this process; a file that names its address must not reach it
INTERFACE = {"data": (MEMORY.ctypes.data, False), "shape": (77,), "typestr": "<f8", "version": 3}
FORGED = {"__array_interface__": INTERFACE, "detach": 1}
TENSOR = (torch.Tensor, torch.Tensor, (1,), FORGED)
CARRIERS = {
    "OrderedDict": lambda: Pickled(OrderedDict, state=FORGED),
    "Counter": lambda: Pickled(Counter, state=FORGED),
    "Tensor": lambda: Pickled(torch._tensor._rebuild_from_type_v2, *TENSOR),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_file_cannot_reach_memory_by_attributes(tmp_path, carrier):
    """NumPy follows `__array_interface__`, an address, wherever an array is made."""
    forged = CARRIERS[carrier]()
    raw = torch.load(saved(forged, tmp_path / "forged.pth"), weights_only=True)
    assert np.array_equal(np.array(raw), MEMORY)  # the forgery works
    content = {
        "state_dict": {"w": forged},
        "optimizer": {"state": {0: {"exp_avg": forged}}, "param_groups": [forged]},
        "meta": {"dataset_meta": {"palette": [forged, (forged,)]}},
        "message_hub": {"log_scalars": {"loss": forged}, "runtime_info": {"best_score": forged}},
    }
    read = read_checkpoint(saved(content, tmp_path / "forged.pth"))
    (group,) = read["optimizer"]["param_groups"]
    found = [read["state_dict"]["w"], group, read["optimizer"]["state"][0]["exp_avg"]]
    found += [read["meta"]["dataset_meta"]["palette"][1][0]]
    found += [read["message_hub"]["log_scalars"]["loss"]]
    assert all(type(value).__name__ == carrier and not vars(value) for value in found)


def array_of(shape: tuple) -> Pickled:
    """Eight bytes as an array of this shape."""
    reconstruct = np.zeros(1).__reduce__()[0]
    state = (1, shape, np.dtype("f8"), False, b"12345678")
    return Pickled(reconstruct, np.ndarray, (0,), b"b", state=state)


COMPLEX = {"values": torch.zeros(1, dtype=torch.complex64), "counts": torch.ones(1)}
NESTED = torch.zeros(2), torch.tensor([[5]]), torch.tensor([[1]]), torch.tensor([10**9])
REFUSED = {
    "values of a history": lambda: history(CARRIERS["OrderedDict"]()),
    "two axes in a history": lambda: history([[1.0]]),
    "complex history": lambda: {"__plain__": "history", "max_length": 9, **COMPLEX},
    "bytes as a length": lambda: history([1.0], [1], b"9"),
    "a negative length": lambda: history([1.0], [1], -1),
    "an array of objects": lambda: np.array([1], dtype=object),
    "a structured array": lambda: np.zeros(1, [("a", "f8")]),
    "a data type": lambda: np.dtype("f8"),
    "a short array": lambda: array_of((9,)),
    "a shape of tensors": lambda: array_of((torch.ones(1),)),
    "a sparse tensor": lambda: torch.ones(2).to_sparse(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8),
    "a nested tensor": lambda: Pickled(torch._utils._rebuild_nested_tensor, *NESTED),
    "a tensor without data": lambda: torch.empty(2, device="meta"),
    "getattr": lambda: Pickled(getattr, getattr, "__self__"),
    "a class of numpy": lambda: Pickled(np.memmap, "x", "u1", "w+", 0, (1,)),
    "a class": lambda: OrderedDict,
}


@pytest.mark.parametrize("name", REFUSED)
def test_crafted_files_are_refused_in_one_line(tmp_path, name):
    path = saved({"state_dict": {}, "meta": {"x": REFUSED[name]()}}, tmp_path / "crafted.pth")
    begin = time.process_time()
    with pytest.raises(CheckpointError, match=f"^{path}: .*$"):
        read_checkpoint(path)
    assert time.process_time() - begin < 1


def test_values_of_every_kind_are_read(tmp_path):
    class Net(torch.nn.Sequential):
        _version = 7

    state = Net(torch.nn.BatchNorm1d(2)).state_dict()
    arrays = [
        np.arange(3.0),
        np.zeros(0, np.float32),
        np.arange(6, dtype=np.int16).reshape(2, 3, order="F"),
        np.array([1.5, -2], ">f4"),
        np.array([2, 0], np.uint8).view(bool),  # 2 is not a bool
        np.array([1 + 2j]),
    ]
    same = {
        "scalars": [np.float64(0.5), np.int64(-3), np.bool_(True)],
        "others": [Counter(a=2), {1, 2}, torch.Size([3]), torch.float16, b"a", b"", None, 1j],
        "many": [True] * 100_000,  # one byte each
        "state_dict": state,
    }
    content = {
        "arrays": arrays,
        "arguments": argparse.Namespace(lr=0.1, sizes=(1, 2)),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "flags": torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool),
        "repeated": torch.ones(1).expand(1000),
        "complex": torch.ones(1, dtype=torch.complex64),
        "history": history([1, 2.5], [1, 3]),
        "last": history([7.0], [1], 1),
        **same,
    }
    read = read_checkpoint(saved(content, tmp_path / "values.pth"))
    for ours, theirs in zip(read["arrays"], arrays, strict=True):
        assert ours.dtype.kind == theirs.dtype.kind and ours.dtype.isnative and ours.flags.writeable
        assert ours.shape == theirs.shape and np.array_equal(ours, theirs.astype(ours.dtype))
    assert read["arrays"][4].view(np.uint8).tolist() == [1, 0]
    assert read["arguments"] == {"lr": 0.1, "sizes": (1, 2)}
    assert type(read["parameter"]) is torch.Tensor and read["parameter"].tolist() == [1, 1]
    assert read["flags"].view(torch.uint8).tolist() == [1, 0]
    assert read["repeated"].sum() == 1000
    assert read["history"].mean() == 3.5 / 4 and read["history"].max_length == 9
    assert read["last"].mean() == 7 and read["last"].max_length == 1
    assert_same({key: read[key] for key in same}, same)
    assert read["state_dict"]._metadata == state._metadata
    assert state._metadata[""]["version"] == 7


def test_formats_that_torch_reads_by_other_means_are_refused(tmp_path, monkeypatch):
    """Before torch 2.6, `weights_only=True` does not protect from TorchScript and tar files."""
    script, old, page = (tmp_path / f"{name}.pth" for name in ("script", "old", "page"))
    torch.jit.script(torch.nn.Linear(1, 1)).save(script)
    page.write_text("<html>")
    for path, reason in ((script, "TorchScript"), (page, "not a torch")):
        with pytest.raises(CheckpointError, match=f"^{path}: .*{reason}.*$"):
            read_checkpoint(path)
    torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    assert read_checkpoint(old)["w"].tolist() == [1, 1]
    monkeypatch.setattr("mmseg_ext.checkpoint.files.HAS_SAFE_TAR", False)  # torch 2.5
    assert read_checkpoint(old)["w"].tolist() == [1, 1]  # most OpenMMLab backbones
    with tarfile.open(old, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(page, "\udc80")  # the first byte is a pickle's
    with raises_message(CheckpointError, "tar", where=old, todo="2.6"):
        read_checkpoint(old)
    zipped = saved({"w": torch.ones(2)}, tmp_path / "new.pth")
    assert read_checkpoint(zipped)["w"].tolist() == [1, 1]
    old.write_bytes(old.read_bytes() + zipped.read_bytes())  # a zip behind a tar
    with pytest.raises(CheckpointError):
        read_checkpoint(old)


class Level(enum.IntEnum):
    HIGH = 3


def test_plain_data_is_read_as_it_was(tmp_path):
    """Objects without a plain form are left out."""
    weights = OrderedDict(w=torch.nn.Parameter(torch.ones(2)))
    weights._metadata = {"": {"version": 7}}
    value = {
        "left out": [builtins, np.array([None]), None],
        "numbers": (np.float32(2), True, Level.HIGH, 1.5, "a", b"b"),
        "arrays": [np.arange(6.0).reshape(2, 3), np.array([1 + 2j]), np.array([True])],
        "history": history([1.0, 2.0], [1, 3], 7),
        "weights": weights,
        "c": [torch.Size([1]), Counter(a=1)],
    }
    dropped = []
    plain = to_plain(value, "meta", dropped)
    assert dropped == ["meta.left out[0] (module)", "meta.left out[1] (ndarray)"]
    torch.load(saved(plain, tmp_path / "plain.pth"), weights_only=True)
    read = read_checkpoint(tmp_path / "plain.pth")
    expected = {
        "left out": [None] * 3,
        "numbers": (2.0, True, 3, 1.5, "a", b"b"),
        "weights": OrderedDict(w=torch.ones(2)),
        "c": [(1,), {"a": 1}],
    }
    assert_same({key: read[key] for key in expected}, expected)
    assert read["weights"]._metadata == weights._metadata
    for ours, theirs in zip(read["arrays"], value["arrays"], strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    assert read["history"].mean() == 3 / 4 and read["history"].max_length == 7


NUMBERS = (1,) * 624
CRAFTED_STATES = [
    {"python": (3, (*NUMBERS, 10**9), None)},
    {"numpy": ("PCG64", torch.ones(624), 1, 0, 0.0)},
    {"numpy": ("MT19937", torch.ones(624), "1", 0, 0.0)},
    {"numpy": ("MT19937", [*NUMBERS], 1, 0, 0.0)},
    {"numpy": ("MT19937", torch.ones(624), -1, 0, 0.0)},
    {"numpy": ("MT19937", torch.ones(624), 625, 0, 0.0)},
    {"numpy": ("MT19937", torch.ones(10), 3, 0, 0.0)},
    {"torch": torch.zeros(9, dtype=torch.uint8)},
    {"torch": torch.ones(5056)},
]


@pytest.mark.parametrize("part", CRAFTED_STATES)
def test_a_crafted_random_state_is_an_error(part):
    """NumPy reads at the position of its stream without a check."""
    with pytest.raises((CheckpointError, AttributeError, RuntimeError, TypeError, ValueError)):
        set_random_state({**random_state(), **part})


@pytest.mark.parametrize("position", [0, 624])
def test_the_ends_of_a_random_state_are_valid(position):
    state = random_state()
    kind, keys, _, *rest = state["numpy"]
    set_random_state({**state, "numpy": (kind, keys, position, *rest)})
    assert np.random.get_state()[2] == position
