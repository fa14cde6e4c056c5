"""The model converters' one function: reading, writing by suffix, refusing, and exit status."""

import pytest
import torch
from safetensors.torch import load_file

from mmseg_ext.checkpoint import read_state_dict
from mmseg_ext.commands import _convert_file as module
from mmseg_ext.commands._convert_file import convert_file, main, write_state_dict
from mmseg_ext.published.families import FAMILIES

CONTENT = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A wrapped checkpoint as EANet's training wrote it, of a family that renames 'a' to 'b'."""

    def convert(state_dict, classifier):
        kept = state_dict if classifier else {k: v for k, v in state_dict.items() if "fc" not in k}
        return {key.replace("a.", "b."): value for key, value in kept.items()}

    monkeypatch.setitem(FAMILIES, "toy", convert)
    path = tmp_path / "published.pth"
    torch.save({"net": {**CONTENT, "fc.weight": torch.zeros(1)}, "step": 3}, path)
    return path


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_converts_by_suffix(source, tmp_path, suffix):
    target = tmp_path / "new" / f"converted{suffix}"
    assert main("toy", [str(source), str(target)]) == 0
    written = read_state_dict(target)
    assert written.keys() == {"b.weight", "b.bias"}
    assert torch.equal(written["b.weight"], CONTENT["a.weight"])
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_classifier_option(source, tmp_path):
    target = tmp_path / "converted.pth"
    assert main("toy", [str(source), str(target), "--classifier"], classifier=True) == 0
    assert "fc.weight" in read_state_dict(target)
    with pytest.raises(SystemExit):
        main("toy", [str(source), str(target), "--classifier"])


def test_existing_file_is_kept(source, tmp_path, capsys):
    target = tmp_path / "converted.pth"
    target.write_bytes(b"precious")
    assert main("toy", [str(source), str(target)]) == 1
    assert "exists; --overwrite replaces it" in capsys.readouterr().err
    assert target.read_bytes() == b"precious"
    assert main("toy", [str(source), str(target), "--overwrite"]) == 0
    assert "b.bias" in read_state_dict(target)


def test_bad_suffix_is_refused_before_reading(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.pth or \.safetensors"):
        convert_file("toy", tmp_path / "absent.pth", tmp_path / "out.bin")


def test_errors_are_one_line(tmp_path, capsys):
    assert main("eanet", [str(tmp_path / "absent.pth"), str(tmp_path / "out.pth")]) == 1
    error = capsys.readouterr().err
    assert "no such checkpoint file" in error and error.count("\n") == 1


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("disk full")

    monkeypatch.setattr(module.torch, "save", fail)
    target = tmp_path / "out.pth"
    target.write_bytes(b"before")
    with pytest.raises(RuntimeError, match="disk full"):
        write_state_dict(CONTENT, target, overwrite=True)
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_shared_and_strided_tensors(tmp_path):
    """EANet's memories share storage when the model stayed on the CPU."""
    memory = torch.randn(4, 3, 1)
    target = tmp_path / "out.safetensors"
    write_state_dict({"keys": memory, "values": memory.permute(1, 0, 2)}, target)
    written = load_file(target)
    assert torch.equal(written["keys"], memory)
    assert torch.equal(written["values"], memory.permute(1, 0, 2))
