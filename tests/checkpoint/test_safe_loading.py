"""No path on which weights are loaded runs code from them; each load says how much it fills."""

import argparse
import builtins
import json
import os
import time
import zipfile
from collections import Counter, OrderedDict
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader
from mmseg.apis import MMSegInferencer, init_model
from mmseg.registry import MODELS
from safetensors.torch import save_file

import mmseg_ext
from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.checkpoint.loading import check_coverage, require_coverage
from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.commands.publish_model import publish
from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.train import main as train
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import CheckpointError
from tests.engine.runs import log_text, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED, assert_same

test.__test__ = False


class Pickled:
    """An object that is pickled as a call, and as the state that the result is given."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = function, arguments, state

    def __reduce__(self):
        return self.reduced


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safe")
    config = write_config(folder, UNVALIDATED)
    train_here(config, folder / "work", "train_cfg.max_iters=1")
    return folder


@pytest.fixture
def good(folder):
    return read_checkpoint(folder / "work/iter_1.pth")


@pytest.fixture
def armed(good, tmp_path):
    """A checkpoint whose weights are right and whose meta runs code when unpickled."""
    good["meta"]["note"] = Pickled(os.mkdir, str(tmp_path / "proof"))
    torch.save(good, tmp_path / "armed.pth")
    with pytest.raises(FileExistsError):  # the payload works: it runs twice here
        for _ in range(2):
            torch.load(tmp_path / "armed.pth", weights_only=False)
    (tmp_path / "proof").rmdir()
    return tmp_path / "armed.pth"


def fails(tool, *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        tool([str(word) for word in words])
    return end.value.code


def ways(config: Path, path: Path, work: Path) -> dict:
    """Each way to load the file `path`, from the command line or from Python."""
    init = "model.backbone.init_cfg"
    pretrained = (f"{init}.type=Pretrained", f"{init}.checkpoint={path}")
    return {
        "load_from": lambda: train_here(config, work, f"load_from={path}"),
        "resume": lambda: train_here(config, work, f"load_from={path}", flags=("--resume",)),
        "init_cfg": lambda: train_here(config, work, *pretrained),
        "test.py": lambda: test([str(config), str(path), "--work-dir", str(work)]),
        "inference": lambda: mmseg_ext.get_model(config, weights=path),
        "init_model": lambda: init_model(str(config), str(path), device="cpu"),
    }


@pytest.mark.parametrize("way", ways(*[Path()] * 3))
def test_a_payload_does_not_run(folder, armed, tmp_path, way):
    context = mmseg_ext.safe_loading() if way == "init_model" else nullcontext()
    with context, pytest.raises((SystemExit, CheckpointError)) as refusal:
        ways(folder / "tiny.py", armed, tmp_path / "work")[way]()
    assert str(armed) in str(refusal.value)
    assert not (tmp_path / "proof").exists()


def test_fetched_files_are_read_as_safely(armed, tmp_path, monkeypatch):
    def download(url, path, *args, **kwargs):
        Path(path).write_bytes(armed.read_bytes())

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("MMENGINE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    (tmp_path / "open_mmlab.json").write_text(json.dumps({"armed": str(armed)}))
    for address in ("open-mmlab://resnet18_v1c", "open-mmlab://armed"):
        with mmseg_ext.safe_loading(), pytest.raises(CheckpointError):
            CheckpointLoader.load_checkpoint(address)
    assert not (tmp_path / "proof").exists()


def test_other_loading_is_unchanged_and_one_variable_turns_the_protection_off(
    armed, tmp_path, monkeypatch
):
    """A hook may unpickle its own files during a run."""
    with mmseg_ext.safe_loading():
        assert "note" in torch.load(armed, weights_only=False)["meta"]
        (tmp_path / "proof").rmdir()
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        assert CheckpointLoader.load_checkpoint(str(armed))["meta"].keys() >= {"note", "iter"}
    assert (tmp_path / "proof").exists()


def saved(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def history(values: object, counts: object = (1,), length: object = 9) -> HistoryBuffer:
    buffer = HistoryBuffer()
    buffer._log_history, buffer._count_history, buffer.max_length = values, counts, length
    return buffer


def our_history(values: torch.Tensor, length: object = 9) -> dict:
    counts = torch.ones(len(values))
    return {"__plain__": "history", "values": values, "counts": counts, "max_length": length}


def doubled(kind: type) -> object:
    value = kind([1])
    for _ in range(40):
        value = kind([value, value])
    return value


def cyclic() -> list:
    value = []
    value.append(value)
    return value


MEMORY = np.arange(77.0)  # of this process; a file that names its address must not reach it
INTERFACE = {
    "data": (MEMORY.ctypes.data, False),
    "shape": (77,),
    "typestr": "<f8",
    "version": 3,
}
CARRIERS = {
    "OrderedDict": lambda: Pickled(OrderedDict, state={"__array_interface__": INTERFACE}),
    "Counter": lambda: Pickled(Counter, state={"__array_interface__": INTERFACE}),
    "Tensor": lambda: Pickled(
        torch._tensor._rebuild_from_type_v2,
        torch.Tensor,
        torch.Tensor,
        (1,),
        {"__array_interface__": INTERFACE, "detach": 1},
    ),
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
    found = [
        read["state_dict"]["w"],
        read["optimizer"]["state"][0]["exp_avg"],
        read["optimizer"]["param_groups"][0],
        read["meta"]["dataset_meta"]["palette"][1][0],
        read["message_hub"]["log_scalars"]["loss"],
    ]
    assert all(type(value).__name__ == carrier and not vars(value) for value in found)


def array_of(shape: tuple) -> Pickled:
    """Eight bytes as an array of this shape."""
    reconstruct = np.zeros(1).__reduce__()[0]
    state = (1, shape, np.dtype("f8"), False, b"12345678")
    return Pickled(reconstruct, np.ndarray, (0,), b"b", state=state)


REFUSED = {
    "values of a history": lambda: history(CARRIERS["OrderedDict"]()),
    "counts of a history": lambda: history([1.0], CARRIERS["Counter"]()),
    "objects in a history": lambda: history([1.0, 10**40], [1, 1]),
    "strings in a history": lambda: history(["a"]),
    "two axes in a history": lambda: history([[1.0]]),
    "complex history": lambda: our_history(torch.zeros(1, dtype=torch.complex64)),
    "sparse history": lambda: our_history(torch.ones(1).to_sparse()),
    "bytes as a length": lambda: history([1.0], [1], b"9"),
    "a negative length": lambda: our_history(torch.ones(1), -1),
    "an array of objects": lambda: np.array([1], dtype=object),
    "an array of strings": lambda: np.array([b"12345678"]),
    "a structured array": lambda: np.zeros(1, [("a", "f8")]),
    "a data type": lambda: np.dtype("f8"),
    "a changed data type": lambda: Pickled(
        np.dtype, "f8", state=(3, "|", None, None, None, 64, 1, 0)
    ),
    "a short array": lambda: array_of((9,)),
    "a shape of tensors": lambda: array_of((torch.ones(1),)),
    "a sparse tensor": lambda: torch.ones(2).to_sparse(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8),
    "a tensor without data": lambda: torch.empty(2, device="meta"),
    "a repeated tensor": lambda: torch.zeros(1).expand(2**20, 2**20),
    "a tensor under many names": lambda: list(torch.zeros(1, 2**20).expand(300, -1)),
    "doubled lists": lambda: doubled(list),
    "doubled tuples": lambda: {"a": doubled(tuple)},
    "a list in itself": cyclic,
    "getattr": lambda: Pickled(getattr, getattr, "__self__"),
    "a class of numpy": lambda: Pickled(np.memmap, "x", "u1", "w+", 0, (1,)),
    "a class": lambda: OrderedDict,
}


@pytest.mark.parametrize("name", REFUSED)
def test_crafted_files_are_refused_in_one_line(tmp_path, name):
    path = saved({"state_dict": {}, "meta": {"x": REFUSED[name]()}}, tmp_path / "crafted.pth")
    begin = time.perf_counter()
    with pytest.raises(CheckpointError, match=f"^{path}: .*$"):
        read_checkpoint(path)
    assert time.perf_counter() - begin < 1


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
    content = {
        "arrays": arrays,
        "scalars": [np.float64(0.5), np.int64(-3), np.bool_(True)],
        "arguments": argparse.Namespace(lr=0.1, sizes=(1, 2)),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "flags": torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool),
        "repeated": torch.ones(1).expand(1000),
        "others": [Counter(a=2), {1, 2}, torch.Size([3]), torch.float16, b"a", b"", None, 1j],
        "history": history([1, 2.5], [1, 3]),
        "state_dict": state,
    }
    read = read_checkpoint(saved(content, tmp_path / "values.pth"))
    for ours, theirs in zip(read["arrays"], arrays, strict=True):
        assert ours.dtype.kind == theirs.dtype.kind and ours.dtype.isnative and ours.flags.writeable
        assert ours.shape == theirs.shape and np.array_equal(ours, theirs.astype(ours.dtype))
    assert read["arrays"][4].view(np.uint8).tolist() == [1, 0]
    assert read["scalars"] == [0.5, -3, True] and isinstance(read["scalars"][0], np.float64)
    assert read["arguments"] == {"lr": 0.1, "sizes": (1, 2)}
    assert type(read["parameter"]) is torch.Tensor and read["parameter"].tolist() == [1, 1]
    assert read["flags"].view(torch.uint8).tolist() == [1, 0]
    assert read["repeated"].sum() == 1000
    assert read["others"] == content["others"]
    assert list(map(type, read["others"])) == list(map(type, content["others"]))
    assert read["history"].mean() == 3.5 / 4 and read["history"].max_length == 9
    assert_same(read["state_dict"], state)
    assert read["state_dict"]._metadata == state._metadata
    assert state._metadata[""]["version"] == 7


def test_formats_that_torch_reads_by_other_means_are_refused(tmp_path, monkeypatch):
    """Before torch 2.6, `weights_only=True` does not protect from TorchScript and tar files."""
    script, packed, old, page = (tmp_path / f"{name}.pth" for name in ("s", "p", "old", "page"))
    torch.jit.script(torch.nn.Linear(1, 1)).save(script)
    saved({"w": torch.zeros(10**6)}, packed)
    with zipfile.ZipFile(packed) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    page.write_text("<html>")
    for path in (script, packed, page):
        with pytest.raises(CheckpointError, match=f"^{path}: .*$"):
            read_checkpoint(path)
    torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    assert read_checkpoint(old)["w"].tolist() == [1, 1]
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.5.1"))
    with pytest.raises(CheckpointError, match=r"torch 2\.5\.1 .* torch 2\.6"):
        read_checkpoint(old)
    zipped = saved({"w": torch.ones(2)}, tmp_path / "new.pth")
    assert read_checkpoint(zipped)["w"].tolist() == [1, 1]
    old.write_bytes(old.read_bytes() + zipped.read_bytes())  # a zip behind the old format
    with pytest.raises(CheckpointError):
        read_checkpoint(old)


def test_configs_in_a_checkpoint_are_not_executed(folder, good, tmp_path):
    """Resuming executes meta['config'] in mmengine, an inferencer the others."""
    program = f"import os\nos.mkdir({str(tmp_path / 'proof')!r})\n"
    good["meta"]["config"] = good["meta"]["cfg"] = program
    good["message_hub"]["runtime_info"]["cfg"] = program
    path = tmp_path / "program.pth"
    good["meta"]["iter"] = 0
    torch.save(good, path)
    options, work = (f"load_from={path}", "train_cfg.max_iters=1"), tmp_path / "work"
    train_here(folder / "tiny.py", work, *options, flags=("--resume",))
    assert (work / "iter_1.pth").is_file()
    with pytest.raises(ValueError, match="Cannot find the config"), mmseg_ext.safe_loading():
        MMSegInferencer(model=None, weights=str(path), device="cpu")
    assert not (tmp_path / "proof").exists()


def test_our_checkpoints_need_no_unpickling(folder, good):
    raw = torch.load(folder / "work/iter_1.pth", weights_only=True)
    assert type(raw["message_hub"]["log_scalars"]["train/loss"]) is dict
    assert raw["state_dict"]._metadata["backbone.stem.0"] == {"version": 1}
    assert isinstance(good["message_hub"]["log_scalars"]["train/loss"], HistoryBuffer)


def test_an_object_without_a_plain_form_is_left_out():
    dropped = []
    value = {"a": [builtins, np.float32(2)], "b": Path("c"), "d": torch.Size([1])}
    assert to_plain(value, "meta", dropped) == {"a": [None, 2.0], "b": "c", "d": (1,)}
    assert dropped == ["meta.a[0] (module)"]


def test_published_weights_need_only_mmsegmentation(folder, good, tmp_path):
    config, source = folder / "tiny.py", folder / "work/iter_1.pth"
    path = publish(source, tmp_path / "published.pth", float16=True)
    model = init_model(str(config), str(path), device="cpu")
    assert model.dataset_meta["classes"] == list(good["meta"]["dataset_meta"]["classes"])
    name = "decode_head.conv_seg.weight"
    assert (model.state_dict()[name] == good["state_dict"][name].half().float()).all()


def test_safetensors_wherever_a_checkpoint_is(folder, good, tmp_path):
    path, config = tmp_path / "weights.safetensors", folder / "tiny.py"
    dataset_meta = {"classes": ["a", "b", "c"], "palette": [[0, 0, 0], [1, 2, 3], [4, 5, 6]]}
    save_file(dict(good["state_dict"]), path, {"dataset_meta": json.dumps(dataset_meta)})
    with mmseg_ext.safe_loading():
        model = init_model(str(config), str(path), device="cpu")
    assert_same(dict(model.state_dict()), dict(good["state_dict"]))
    assert model.dataset_meta == dataset_meta
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=str(path)):
        read_checkpoint(path)


# ---------------------------------------------------------------------- mmengine's own checkpoints

STOCK = """
runner_type = "Runner"
default_hooks = dict(
    _delete_=True,
    checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=2, save_best="mIoU"),
    logger=dict(type="LoggerHook", interval=1),
)
train_cfg["val_interval"] = 2
"""


def test_checkpoints_of_mmengines_runner_are_read_and_resumed(tmp_path):
    """By its own Runner and by ours, without unpickling."""
    extras = {"stock": STOCK, "ours": ""}
    configs = {name: write_config(tmp_path, text, f"{name}.py") for name, text in extras.items()}
    path = tmp_path / "work/iter_2.pth"
    train_here(configs["stock"], path.parent, "train_cfg.max_iters=2")
    read, theirs = read_checkpoint(path), torch.load(path, weights_only=False)
    assert_same(read["state_dict"], theirs["state_dict"])
    assert_same(read["optimizer"], theirs["optimizer"])
    hubs = read["message_hub"], theirs["message_hub"]
    for key, history in hubs[1]["log_scalars"].items():
        ours = hubs[0]["log_scalars"][key]
        assert type(ours) is HistoryBuffer and ours.mean() == history.mean()
        assert all((a == b).all() for a, b in zip(ours.data, history.data, strict=True))
    assert hubs[0]["runtime_info"]["best_score"] == hubs[1]["runtime_info"]["best_score"]
    for name, config in configs.items():
        options, work = (f"load_from={path}", "train_cfg.max_iters=3"), tmp_path / name
        train_here(config, work, *options, flags=("--resume",))
        assert "resumed epoch: 0, iter: 2" in log_text(work)


# ---------------------------------------------------------------------- coverage


def test_too_little_of_a_backbone_is_refused_unless_told_otherwise(folder, good, tmp_path):
    config, path = folder / "tiny.py", tmp_path / "half.pth"
    weights = good["state_dict"]
    half = {k: v for k, v in weights.items() if "layer4" not in k}
    torch.save({"state_dict": half, "meta": {}}, path)
    kept = sum(v.numel() for k, v in half.items() if k.startswith("backbone."))
    share = kept / sum(v.numel() for k, v in weights.items() if k.startswith("backbone."))
    assert share < 0.9
    work = tmp_path / "work"
    message = fails(train, *train_words(config, work, f"load_from={path}"))
    for part in (f"fill {share:.1%}", "less than 90%", "layer4.0."):
        assert part in message
    with mmseg_ext.safe_loading(min_backbone_share=0):
        init_model(str(config), str(path), device="cpu")
    told = ("min_backbone_share=0", "train_cfg.max_iters=1")
    train_here(config, work, f"load_from={path}", *told)
    assert f"{share:.1%} of its backbone; not filled: backbone.layer4" in log_text(work)


def test_names_without_the_prefix_fill_nothing(folder, good):
    """The known way to lose a week: a backbone's file given as the segmentor's."""
    model = MODELS.build(load_settings(str(folder / "tiny.py")).model)
    bare = {k.removeprefix("backbone."): v for k, v in good["state_dict"].items()}
    with pytest.raises(CheckpointError, match=r"fill 0.0% of the backbone \(ResNetV1c\)"):
        check_coverage(model, bare)
    with require_coverage(backbone_share=0):
        assert "0.0% of its backbone" in check_coverage(model, bare)
        wrong = {k: v[..., :1] for k, v in good["state_dict"].items()}  # names right, shapes not
        assert "not filled: backbone.stem.0.weight" in check_coverage(model, wrong)
    assert "100.0% of its backbone" in check_coverage(model, good["state_dict"])
    with pytest.raises(ValueError, match=r"not 1\.1"), mmseg_ext.safe_loading(1.1):
        pass


def test_weights_of_other_classes_are_for_training_to_start_from(folder, good, tmp_path):
    config, work, path = folder / "tiny.py", tmp_path / "work", tmp_path / "classes.pth"
    weights = {k: v[:2] if "conv_seg" in k else v for k, v in good["state_dict"].items()}
    torch.save({**good, "state_dict": weights}, path)
    message = fails(test, config, path, "--work-dir", work)
    assert "decode_head.conv_seg.weight ((2, 16, 1, 1) for (3, 16, 1, 1))" in message
    options = (f"load_from={path}", "train_cfg.max_iters=1")
    words = train_words(config, work, *options, flags=("--resume",))
    assert "at random values" in fails(train, *words)
    train_here(config, work, *options)


def test_weights_that_are_not_finite_are_refused(folder, good, tmp_path):
    path, config = tmp_path / "spoiled.pth", folder / "tiny.py"
    good["state_dict"]["decode_head.conv_seg.bias"][0] = float("nan")
    torch.save(good, path)
    expected = "the weights are not finite: decode_head.conv_seg.bias"
    assert expected in fails(test, config, path, "--work-dir", tmp_path / "work")
