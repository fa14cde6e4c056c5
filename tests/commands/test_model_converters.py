"""The model converters' one function: reading, writing by suffix, refusing, and exit status."""

import importlib
import re
import resource

import pytest
import torch
from safetensors.torch import load_file

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.checkpoint import convert_official, read_state_dict
from mmseg_ext.checkpoint.writing import write_weights
from mmseg_ext.commands import commands
from mmseg_ext.commands._convert_file import convert_file, main

FAMILY = "deepvit"


@pytest.fixture
def source(tmp_path):
    """A small DeepViT classifier, wrapped as EANet's training wrapped its checkpoints."""
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
    model = DeepViT(arch=arch, img_size=32, num_classes=5)
    path = tmp_path / "published.pth"
    torch.save({"net": model.state_dict(), "step": 3}, path)
    return path


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_converts_by_suffix(source, tmp_path, suffix):
    target = tmp_path / "new" / f"converted{suffix}"
    assert main(FAMILY, [str(source), str(target)]) == 0
    written, read = read_state_dict(target), read_state_dict(source)
    assert written.keys() == {k for k in read if not k.startswith("head.")}
    assert all(torch.equal(value, read[key]) for key, value in written.items())
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_classifier_option(source, tmp_path):
    target = tmp_path / "converted.pth"
    assert main(FAMILY, [str(source), str(target), "--classifier"], classifier=True) == 0
    assert "head.weight" in read_state_dict(target)
    with pytest.raises(SystemExit):
        main(FAMILY, [str(source), str(target), "--classifier"])


def test_existing_file_is_kept(source, tmp_path, capsys):
    target = tmp_path / "converted.pth"
    target.write_bytes(b"precious")
    assert main(FAMILY, [str(source), str(target)]) == 1
    assert "exists; --overwrite replaces it" in capsys.readouterr().err
    assert target.read_bytes() == b"precious"
    assert main(FAMILY, [str(source), str(target), "--overwrite"]) == 0
    assert "norm.weight" in read_state_dict(target)


def test_bad_suffix_is_refused_before_reading(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.pth or \.safetensors"):
        convert_file("toy", tmp_path / "absent.pth", tmp_path / "out.bin")


def test_errors_are_one_line(tmp_path, capsys):
    assert main("eanet", [str(tmp_path / "absent.pth"), str(tmp_path / "out.pth")]) == 1
    error = capsys.readouterr().err
    assert "no such checkpoint file" in error and error.count("\n") == 1


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_failed_write_keeps_what_was_there(source, tmp_path, capsys, suffix):
    """Files of this process can grow to 10 kB, as on a full disk."""
    target = tmp_path / f"out{suffix}"
    target.write_bytes(b"before")
    before = sorted(tmp_path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        assert main(FAMILY, [str(source), str(target), "--overwrite"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == f"error: {target} cannot be written: File too large\n"
    assert target.read_bytes() == b"before"
    assert sorted(tmp_path.iterdir()) == before


def test_shared_and_strided_tensors(tmp_path):
    """EANet's memories share storage when the model stayed on the CPU."""
    memory = torch.randn(4, 3, 1)
    target = tmp_path / "out.safetensors"
    write_weights({"keys": memory, "values": memory.permute(1, 0, 2)}, target)
    written = load_file(target)
    assert torch.equal(written["keys"], memory)
    assert torch.equal(written["values"], memory.permute(1, 0, 2))


def test_a_classifier_that_the_family_has_not_is_refused():
    with pytest.raises(ValueError, match="'eanet' has no classifier to keep"):
        convert_official("eanet", {}, classifier=True)
    with pytest.raises(ValueError, match=r"family must be one of eanet, .* not 'resnet'"):
        convert_official("resnet", {})


@pytest.mark.parametrize("name", [n for n in commands() if n.endswith("2mmseg")])
def test_help_and_a_missing_file_say_where_it_comes_from(name, tmp_path, capsys):
    module = importlib.import_module(f"mmseg_ext.commands.{name}")
    with pytest.raises(SystemExit):
        module.main(["--help"])
    shown = capsys.readouterr().out
    assert "Nothing is downloaded." in shown and module.WHERE.strip() in shown
    assert re.search(r"https://github\.com/\w+", module.WHERE)
    assert module.main([str(tmp_path / "none.pth"), str(tmp_path / "out.pth")]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"error: {tmp_path / 'none.pth'}: no such checkpoint file. The ")
    assert module.WHERE.strip() in line
