"""The command `convert`: what it reads, writes and refuses, and its exit status."""

import argparse
from pathlib import Path

import pytest
import torch
from mmengine.runner.checkpoint import CheckpointLoader

import mmseg_ext
from mmseg_ext.backbones import DeepViT
from mmseg_ext.checkpoint import read_state_dict
from mmseg_ext.commands import run
from tests.messages import check_message


@pytest.fixture
def source(tmp_path):
    """A small DeepViT classifier, wrapped as published training scripts wrap their checkpoints."""
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
    model = DeepViT(arch=arch, img_size=32, num_classes=5)
    path = tmp_path / "published.pth"
    torch.save({"net": model.state_dict(), "step": 3, "args": argparse.Namespace(lr=0.1)}, path)
    return str(path)


@pytest.mark.parametrize(("suffix", "classifier"), [(".pth", False), (".safetensors", True)])
def test_converts(source, tmp_path, suffix, classifier, capsys):
    target = tmp_path / "new" / f"converted{suffix}"
    assert run("convert", ["deepvit", source, str(target), *["--classifier"] * classifier]) == 0
    written, read = read_state_dict(target), read_state_dict(source)
    assert written.keys() == {k for k in read if classifier or not k.startswith("head.")}
    assert all(torch.equal(value, read[key]) for key, value in written.items())
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    printed = capsys.readouterr().out
    assert f"{target}: {len(written)} entries" in printed
    assert "mean (127.5, " in printed and "MIT" in printed
    with mmseg_ext.safe_loading():
        assert CheckpointLoader.load_checkpoint(str(target))["meta"] == {"license": "MIT"}


def test_an_existing_file_is_kept(source, tmp_path, capsys):
    target = tmp_path / "converted.pth"
    target.write_bytes(b"precious")
    assert run("convert", ["deepvit", source, str(target)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert target.read_bytes() == b"precious"
    assert run("convert", ["deepvit", source, str(target), "--overwrite"]) == 0
    assert "norm.weight" in read_state_dict(target)


def test_the_published_file_is_not_replaced_by_its_conversion(source, tmp_path, capsys):
    before = Path(source).read_bytes()
    (tmp_path / "folder").mkdir()
    for target in (source, str(tmp_path / "folder/../published.pth")):
        assert run("convert", ["deepvit", source, target, "--overwrite"]) == 1
        error = capsys.readouterr().err
        assert f"{target}: is the input" in error and error.count("\n") == 1
        assert Path(source).read_bytes() == before


def test_refusals_are_one_line(source, tmp_path, capsys):
    """With the file and the family."""
    target, other = tmp_path / "out.pth", tmp_path / "other.pth"
    absent = "absent.pth: no such checkpoint file; eanet: README of "
    scalars = dict.fromkeys(("cls_token", "tokens_to_token.a", "blocks.0.norm1.weight"))
    torch.save({key: torch.tensor(1.0) for key in scalars}, other)
    for words, message in (
        (["eanet", "absent.pth"], absent),
        (["eamlp", source], f"{source}: cannot be converted as eamlp: unmapped keys"),
        (["rmt", source, "--classifier"], f"{source}: cannot be converted as rmt: "),
        (["eamlp", str(other)], f"{other}: cannot be converted as eamlp: "),
        (["eanet", source, "--classifier"], f"{source}: cannot be converted as eanet: "),
    ):
        assert run("convert", [*words[:2], str(target), *words[2:]]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"mmseg_ext: {message}") and error.count("\n") == 1
    assert not target.exists()


def test_source_and_target_in_another_order(source, tmp_path, capsys):
    target = tmp_path / "out.pth"
    for more in ([], ["--overwrite"]):
        assert run("convert", ["deepvit", str(target), source, *more]) == 1
        error = capsys.readouterr().err.removeprefix("mmseg_ext: ")
        check_message(error, where=f"{target}: ", todo="FAMILY SRC DST")
        assert error.count("\n") == 1 and not target.exists()
