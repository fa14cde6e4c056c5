"""Publishing weights: what the file holds, its name, and what is refused."""

import hashlib
import json

import pytest
import torch
from mmengine.runner import save_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file

from mmseg_ext.checkpoint import read_state_dict
from mmseg_ext.checkpoint.files import read_checkpoint, write_weights
from mmseg_ext.commands import run
from tests.messages import check_message, lines_with


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_published_weights(suffix, tmp_path, capsys):
    """The weights and the classes alone, under a name that ends in the file's own hash."""
    palette = {"palette": [[0, 0, 0], [1, 2, 3]]}
    meta = {"dataset_meta": {"classes": ("a", "b"), **palette}}
    weights = {"w": torch.randn(3, 4), "n": torch.tensor(7)}
    content = {
        "state_dict": weights,
        "optimizer": {"state": torch.randn(1000)},
        "meta": {**meta, "cfg": "secret = '/home/someone'"},
    }
    save_checkpoint(content, str(tmp_path / "iter_1.pth"))
    # A name whose end stripping the characters of '.pth' would eat.
    words = [str(tmp_path / "iter_1.pth"), str(tmp_path / f"depth{suffix}")]
    capsys.readouterr()  # what writing the checkpoint said
    assert run("publish_model", words) == 0
    (path,) = tmp_path.glob("depth-*")
    assert capsys.readouterr().out == f"{path}\n"
    assert path.suffix == suffix
    with pytest.raises(FileNotFoundError, match=path.name):  # the hash is easily forgotten
        read_state_dict(tmp_path / f"depth{suffix}")
    assert path.stem == f"depth-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    read = read_state_dict(path)
    assert read.keys() == weights.keys()
    assert all((read[name] == value).all() for name, value in weights.items())
    assert b"secret" not in path.read_bytes()
    if suffix == ".pth":
        read = torch.load(path, weights_only=True)  # mmengine needs nothing else
        assert read.keys() == {"state_dict", "meta"} and type(read["state_dict"]) is dict
        assert read["meta"] == {"dataset_meta": {"classes": ["a", "b"], **palette}}
    else:
        assert load_file(path).keys() == weights.keys()
        with safe_open(path, "pt") as file:
            saved = json.loads(file.metadata()["dataset_meta"])
        assert saved == {"classes": ["a", "b"], **palette}


def test_float16_loads_strictly_into_float32(tmp_path, capsys):
    """Half of the bytes; without the counters, which batch norms fill in by themselves."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "iter_1.pth")
    path = tmp_path / "small.safetensors"
    words = [str(tmp_path / "iter_1.pth"), str(path), "--float16"]
    assert run("publish_model", [*words, "--no-hash", "--about", "mIoU=60.0", "a=b=c"]) == 0
    read = load_file(path)
    assert {value.dtype for value in read.values()} == {torch.float16}
    copy = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    copy.load_state_dict(read, strict=True)
    assert (copy[0].weight == model[0].weight.half().float()).all()
    with safe_open(path, "pt") as file:
        told = file.metadata()
    assert told["mIoU"] == "60.0" and told["a"] == "b=c"
    capsys.readouterr()
    torch.save({"state_dict": {"w": torch.full((2,), 1e5)}}, tmp_path / "iter_1.pth")
    assert run("publish_model", words) == 1
    line = capsys.readouterr().err
    assert lines_with(line, "float16", "w") and line.count("\n") == 1


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_the_training_checkpoint_is_not_replaced(suffix, tmp_path, capsys):
    """By its own name, another path of it, and a link."""
    path = write_weights({"w": torch.ones(2)}, tmp_path / f"iter_1{suffix}")
    before = path.read_bytes()
    (tmp_path / "folder").mkdir()
    (tmp_path / f"link{suffix}").symlink_to(path)
    for name in (path.name, f"folder/../{path.name}", f"link{suffix}"):
        assert run("publish_model", [str(path), str(tmp_path / name), "--no-hash"]) == 1
        check_message(capsys.readouterr().err.removeprefix("mmseg_ext: "), where=tmp_path / name)
        assert path.read_bytes() == before
    assert run("publish_model", [str(path), str(path)]) == 0  # which appends a hash
    published = capsys.readouterr().out.strip()
    assert run("publish_model", [published, str(path)]) == 0  # the same content again
    assert capsys.readouterr().out.strip() == published and path.read_bytes() == before


def test_classes_of_mmsegmentation_0(tmp_path, capsys):
    """Which `init_model` reads, too. A palette that does not fit is left out, with a line."""
    old, new = tmp_path / "old.pth", tmp_path / "new.safetensors"
    words = [str(old), str(new), "--no-hash"]

    def published(meta: object) -> tuple[object, str]:
        torch.save({"state_dict": {"w": torch.ones(2)}, "meta": meta}, old)
        assert run("publish_model", words) == 0
        return read_checkpoint(new)["meta"].get("dataset_meta"), capsys.readouterr().err

    palette = [[1, 2, 3], [4, 5, 6]]
    meta = {"CLASSES": ("a", "b"), "PALETTE": palette, "mmseg_version": "0.30.0"}
    assert published(meta) == ({"classes": ["a", "b"], "palette": palette}, "")
    assert published(meta | {"PALETTE": None}) == ({"classes": ["a", "b"]}, "")
    for wrong in (palette[:1], [[1, 2, 3], [4, 5]], "random", 7, {"a": [1, 2, 3]}):
        for kind in (
            meta | {"PALETTE": wrong},
            {"dataset_meta": {"classes": ["a", "b"], "palette": wrong}},
        ):
            classes, line = published(kind)
            assert classes == {"classes": ["a", "b"]} and line.count("\n") == 1
            check_message(line.removeprefix("warning: "), 2, "palette", where=old)
    for wrong in (["a"], "a", {"dataset_meta": "voc"}, {"CLASSES": 2}, {"CLASSES": "ab"}):
        classes, line = published(wrong)
        assert classes is None and line.count("\n") == 1
        check_message(line.removeprefix("warning: "), "classes", where=old)
    assert published(None) == published({}) == (None, "")
