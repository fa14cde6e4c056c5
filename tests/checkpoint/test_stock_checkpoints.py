"""What mmengine's own Runner saves loads everywhere as data, and what resembles it does not run."""

import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmseg.apis import init_model
from safetensors import safe_open

import mmseg_ext
from mmseg_ext.checkpoint.safe_reading import read_checkpoint
from mmseg_ext.commands.publish_model import publish
from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.train import main as train
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import BrokenCheckpoint, UnsafeCheckpoint
from mmseg_ext.inference import Predictor
from tests.engine.runs import write_config
from tests.engine.states import assert_same

test.__test__ = False
STOCK = """
runner_type = "Runner"
default_hooks = dict(
    _delete_=True,
    checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=2, save_best="mIoU"),
    logger=dict(type="LoggerHook", interval=1),
)
train_cfg["val_interval"] = 2
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> Path:
    """A folder with a config for mmengine's own Runner, and a checkpoint that it has written."""
    folder = tmp_path_factory.mktemp("stock")
    config = write_config(folder, STOCK, "stock.py")
    write_config(folder)
    arguments = ["--work-dir", str(folder / "work"), "--cfg-options", "train_cfg.max_iters=2"]
    train([str(config), *arguments, "visualizer.name=stock"])
    with pytest.raises(pickle.UnpicklingError):
        torch.load(folder / "work/iter_2.pth", weights_only=True)
    return folder


def test_it_is_read_as_what_it_holds(stock):
    path = stock / "work/iter_2.pth"
    ours, theirs = read_checkpoint(path), torch.load(path, weights_only=False)
    assert_same(ours["state_dict"], theirs["state_dict"])
    assert_same(ours["optimizer"], theirs["optimizer"])
    hubs = ours["message_hub"], theirs["message_hub"]
    assert hubs[0]["log_scalars"].keys() == hubs[1]["log_scalars"].keys()
    for key, history in hubs[1]["log_scalars"].items():
        read = hubs[0]["log_scalars"][key]
        assert type(read) is HistoryBuffer and read.mean() == history.mean()
        for one, two in zip(read.data, history.data, strict=True):
            assert one.dtype == two.dtype and (one == two).all()
    assert hubs[0]["runtime_info"]["best_score"] == hubs[1]["runtime_info"]["best_score"]
    assert ours["meta"]["dataset_meta"] == theirs["meta"]["dataset_meta"]


def test_it_is_tested_resumed_published_and_used(stock, tmp_path):
    config, path = str(stock / "stock.py"), str(stock / "work/iter_2.pth")
    work = ["--work-dir", str(tmp_path / "work")]
    test([config, path, *work, "--cfg-options", "visualizer.name=tested"])
    for name in ("stock", "tiny"):  # mmengine's Runner, and ours
        options = ["train_cfg.max_iters=3", f"load_from={path}", f"visualizer.name={name}"]
        line = [str(stock / f"{name}.py"), "--work-dir", str(tmp_path / name), "--resume"]
        train([*line, "--cfg-options", *options])
        text = "".join(p.read_text() for p in (tmp_path / name).glob("2*/*.log"))
        assert "resumed epoch: 0, iter: 2" in text
    published = publish(path, tmp_path / "weights.safetensors")
    with safe_open(published, "pt") as file:
        assert "255, 0, 0" in file.metadata()["dataset_meta"]
    images = [(0, np.zeros((32, 32, 3), np.uint8))]
    maps = [
        dict(Predictor(load_settings(config), file).predict(images))[0]
        for file in (path, published)
    ]
    assert (maps[0] == maps[1]).all()
    with mmseg_ext.safe_loading():
        assert init_model(config, path, device="cpu").dataset_meta["classes"] == ("a", "b", "c")


def test_the_share_of_a_backbone_is_asked_of_mmengines_runner_too(stock, tmp_path):
    weights = read_checkpoint(stock / "work/iter_2.pth")["state_dict"]
    half = {k: v for k, v in weights.items() if "layer4" not in k}
    torch.save({"state_dict": half}, tmp_path / "half.pth")
    line = [str(stock / "stock.py"), "--work-dir", str(tmp_path / "work"), "--cfg-options"]
    line += [f"load_from={tmp_path / 'half.pth'}", "train_cfg.max_iters=1"]
    with pytest.raises(SystemExit) as end:
        train([*line, "visualizer.name=refused"])
    assert "--cfg-options min_backbone_share=0" in end.value.code
    train([*line, "visualizer.name=told", "min_backbone_share=0"])
    assert (tmp_path / "work/iter_1.pth").is_file()


@pytest.mark.parametrize(
    "value",
    [
        *(np.float64(0.1), np.float32(0.1), np.int64(-3), np.bool_(True), np.str_("text")),
        *(np.arange(6).reshape(2, 3), np.arange(6.0).reshape(2, 3).T, np.zeros((0, 3))),
        *(np.array([1 + 2j]), np.array(["a", "bc"]), np.array(7, ">i2"), np.zeros((), "f2")),
    ],
    ids=lambda value: f"{type(value).__name__}{getattr(value, 'dtype', '')}",
)
@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"])  # NumPy 2 and 1 name it so
def test_values_of_numpy(tmp_path, value, core):
    path = tmp_path / "value.pth"
    torch.save({"value": value}, path)
    rewrite(path, lambda data: data.replace(b"numpy._core", core))
    read = read_checkpoint(path)["value"]
    if isinstance(value, np.generic):
        assert type(read) is type(value.item()) and read == value.item()
    else:
        assert read.dtype == value.dtype and read.shape == value.shape and (read == value).all()
        read.setflags(write=True)


# ---------------------------------------------------------------------- crafted files


def rewrite(path: Path, change) -> None:
    """The archive with another pickle."""
    with zipfile.ZipFile(path) as archive:
        parts = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, change(data) if name.endswith("/data.pkl") else data)


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Built:
    """Pickled as an object that gets a state."""

    def __init__(self, function, arguments, state):
        self.parts = function, arguments, state

    def __reduce__(self):
        return self.parts


RECONSTRUCT = np.zeros(1).__reduce__()[0]
SCALAR = np.float64(1).__reduce__()[0]
OBJECTS = np.dtype("O")


def payloads(proof: str) -> dict[str, object]:
    history = HistoryBuffer([1.0], [1])
    evil = HistoryBuffer([1.0], [1])
    evil._log_history = Call(os.mkdir, proof)
    return {
        "mkdir": Call(os.mkdir, proof),
        "in a history": evil,
        "in an array of objects": np.array([Call(os.mkdir, proof)], dtype=object),
        "getattr of a class": Call(getattr, os.PathLike, "__doc__"),
        "getattr of a history": Call(getattr, history, "__class__"),
        "getattr of its class": Call(Call, getattr, HistoryBuffer, "__init__"),
        "a scalar of objects": Call(SCALAR, OBJECTS, b"12345678"),
        "numpy's loader": Call(np.load, proof),
        "numpy's f2py": Call(np.fromfile, proof),
        "eval": Call(eval, f"__import__('os').mkdir({proof!r})"),
        "a class": Call(type, "a", (), {}),
        "a class of numpy": Call(np.memmap, proof, "u1", "w+", 0, (1,)),
    }


@pytest.mark.parametrize("name", payloads("x"))
def test_crafted_pickles_stay_refused(tmp_path, name):
    path, proof = tmp_path / "crafted.pth", tmp_path / "proof"
    torch.save({"state_dict": {}, "meta": {"x": payloads(str(proof))[name]}}, path)
    with pytest.raises(UnsafeCheckpoint, match=str(path)):
        read_checkpoint(path)
    assert not proof.exists()


def test_what_others_allowed_is_not_allowed(tmp_path):
    """`add_safe_globals` is for the whole process."""
    path, proof = tmp_path / "crafted.pth", tmp_path / "proof"
    torch.save({"x": Call(os.path.join, str(proof), "a")}, path)
    with torch.serialization.safe_globals([(os.path.join, "posixpath.join")]):
        allowed = set(torch.serialization.get_safe_globals())
        assert torch.load(path, weights_only=True)["x"] == f"{proof}/a"
        with pytest.raises(UnsafeCheckpoint):
            read_checkpoint(path)
        assert set(torch.serialization.get_safe_globals()) == allowed


def deep(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def doubling(levels: int) -> list:
    value: list = [1]
    for _ in range(levels):
        value = [value, value]
    return value


def recursive() -> dict:
    value: dict = {}
    value["self"] = [value]
    return value


DAMAGED = {
    "recursive": recursive,
    "billion laughs": lambda: doubling(60),
    "deep": lambda: deep(200),
    "terabytes by strides": lambda: {"w": torch.zeros(1).expand(10**12)},
    "terabytes by many": lambda: [torch.zeros(1).expand(10**9) for _ in range(1000)],
    "memory without data": lambda: Call(torch.FloatTensor, 10**9),
    "meta tensor": lambda: {"w": torch.empty(3, device="meta")},
    "sparse": lambda: {"w": torch.eye(3).to_sparse()},
    "mark without values": lambda: {"meta": {"__plain__": "ndarray"}},
    "mark of text": lambda: {"meta": {"__plain__": "history", "values": "a", "counts": 1}},
    "unequal history": lambda: {
        "x": {"__plain__": "history", "values": torch.zeros(2), "counts": torch.zeros(1),
              "max_length": 3}
    },
    "unknown mark": lambda: {"__plain__": "program"},
    "array of other length": lambda: Built(
        RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (3,), np.dtype("f8"), False, b"1234")
    ),
    "wrong checksum": lambda: {"sha256": ["a"], "x": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_and_endless_content_is_one_message(tmp_path, name):
    path = tmp_path / "damaged.pth"
    torch.save(DAMAGED[name](), path)
    assert path.stat().st_size < 10**6
    with pytest.raises(BrokenCheckpoint, match=f"^{path}: ") as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.pth"
    torch.save({"w": torch.zeros(10**7)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    with pytest.raises(BrokenCheckpoint, match="compressed members"):
        read_checkpoint(path)


@pytest.mark.parametrize("key", ["meta", "message_hub", "runtime_info", "state_dict"])
def test_parts_of_another_kind_are_named(tmp_path, key):
    path = tmp_path / "kind.pth"
    content = {"state_dict": {}, "meta": {}, "message_hub": {"runtime_info": {}}}
    part = content["message_hub"] if key == "runtime_info" else content
    part[key] = [1, 2]
    torch.save(content, path)
    with mmseg_ext.safe_loading(), pytest.raises(BrokenCheckpoint, match=f"its {key} is list"):
        mmseg_ext.checkpoint.safe_loading.load_from_local(str(path))


def test_a_header_that_claims_much_is_safe(tmp_path):
    """A safetensors file of some bytes that announces a header of exabytes."""
    path = tmp_path / "claims.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(BrokenCheckpoint, match=str(path)):
        read_checkpoint(path)
