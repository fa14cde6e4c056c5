"""Projects with encoders of timm, from the weights to the exported file."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from safetensors.torch import save_file

from mmseg_ext import Predictor, commands, get_model
from mmseg_ext.checkpoint.files import read_state_dict
from mmseg_ext.checkpoint.safe_loading import fit_input_channels
from tests.commands.test_bands import FEW, SIZE, TEST, write_sources
from tests.messages import lines_with

timm = pytest.importorskip("timm")

FAMILIES = ("test_resnet", "test_convnext", "test_efficientnet", "test_vit")


def new_project(folder: Path, *flags: str, count: int = 3) -> int:
    if not (folder / "images").exists():
        write_sources(folder, count, np.uint8)
    paths = ["--images", str(folder / "images"), "--masks", str(folder / "masks")]
    return commands.run("new_project", [str(folder / "project"), *paths, *flags])


def start(name: str, *words: object) -> None:
    assert commands.run(name, list(map(str, words))) == 0, name


def save_weights(name: str, path: Path, **changes) -> dict[str, torch.Tensor]:
    """Save a network of timm with its classifier, and return its weights."""
    weights = timm.create_model(name, **changes).state_dict()
    save_file(weights, path)
    return weights


@pytest.mark.parametrize("name", FAMILIES)
def test_from_the_weights_to_the_exported_file(name, tmp_path, capsys):
    """Resumed training gives the same weights; the file of weights is needed by none of it."""
    weights = save_weights(name, tmp_path / "model.safetensors", num_classes=7)
    flags = ["--encoder", name, "--from", str(tmp_path / "model.safetensors")]
    assert new_project(tmp_path, *flags) == 0
    assert lines_with(capsys.readouterr().out, "training starts from", "model.safetensors", name)
    (tmp_path / "model.safetensors").unlink()
    project = tmp_path / "project"
    kept = read_state_dict(project / "encoder.safetensors")
    for key, value in kept.items():
        if key.startswith("model."):
            assert torch.equal(value, weights[key.removeprefix("model.")])
    config, run = project / "config.py", project / "work_dir"
    start("train", config, "--cfg-options", *FEW, "train_cfg.max_iters=4", "--work-dir", run)
    other = project / "resumed"
    start("train", config, "--cfg-options", *FEW, "train_cfg.max_iters=4", "--work-dir", other)
    for path in other.glob("*iter_4.pth"):
        path.unlink()
    (other / "last_checkpoint").unlink(missing_ok=True)
    (project / "encoder.safetensors").unlink()
    words = ["--cfg-options", *FEW, "train_cfg.max_iters=4", "--work-dir", other, "--resume"]
    start("train", config, *words)
    trained, resumed = (read_state_dict(folder / "iter_4.pth") for folder in (run, other))
    assert all(torch.equal(value, resumed[key]) for key, value in trained.items())
    changed = [k for k, v in kept.items() if not torch.equal(v, trained[f"backbone.{k}"])]
    assert any(key.startswith("model.") for key in changed)

    moved = tmp_path / "elsewhere"
    shutil.copytree(project, moved, symlinks=True)
    shutil.rmtree(project)
    config, checkpoint = moved / "config.py", moved / "work_dir/iter_4.pth"
    start("test", config, checkpoint, "--cfg-options", *TEST, "--work-dir", moved / "work_dir")
    photo = next((tmp_path / "images").iterdir())
    start("image_demo", photo, config, checkpoint, "--out", tmp_path / "pictures")
    result = Predictor(str(config), str(checkpoint))(str(photo))
    assert result.labels.shape == SIZE
    start("export", config, checkpoint, "--shape", 32, 64, "--out", tmp_path / "a.onnx")
    assert "100.000%" in capsys.readouterr().out


def test_export_is_for_one_size(tmp_path, capsys):
    assert new_project(tmp_path, "--encoder", "test_convnext", "--from", "scratch") == 0
    config, path = tmp_path / "project/config.py", tmp_path / "a.onnx"
    assert commands.run("export", [str(config), "none", "--dynamic", "--out", str(path)]) == 1
    assert (
        "--dynamic: TimmEncoder is exported only for one size; run without it"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ("test_convnext", "test_vit"))
def test_tiles_and_other_bands(name, tmp_path):
    """The first convolution's weights for three bands become some for five."""
    weights = save_weights(name, tmp_path / "model.safetensors")
    flags = ["--encoder", name, "--from", str(tmp_path / "model.safetensors"), "--tiles"]
    assert new_project(tmp_path, *flags, count=5) == 0
    config, run = tmp_path / "project/config.py", tmp_path / "project/work_dir"
    assert Config.fromfile(config).model.backbone.in_channels == 5
    options = [*FEW, "optim_wrapper.optimizer.lr=0"]
    start("train", config, "--cfg-options", *options, "--work-dir", run)
    (first,) = [key for key, value in weights.items() if value.shape[1:2] == (3,)]
    trained = read_state_dict(run / "iter_2.pth")[f"backbone.model.{first}"]
    torch.testing.assert_close(trained, fit_input_channels(weights[first], 5))
    start("test", config, run / "iter_2.pth", "--cfg-options", *TEST, "--work-dir", run)


def test_from_a_trained_project(tmp_path, capsys):
    """Only with the encoder's name, because the file does not have it."""
    assert new_project(tmp_path, "--encoder", "test_resnet", "--from", "scratch") == 0
    config, run = tmp_path / "project/config.py", tmp_path / "project/work_dir"
    start("train", config, "--cfg-options", *FEW, "--work-dir", run)
    shutil.move(run / "iter_2.pth", tmp_path / "old.pth")
    shutil.rmtree(tmp_path / "project")
    assert new_project(tmp_path, "--from", str(tmp_path / "old.pth")) == 1
    assert "add --encoder NAME" in capsys.readouterr().err
    flags = ["--from", str(tmp_path / "old.pth")]
    assert new_project(tmp_path, "--encoder", "test_convnext", *flags) == 1
    assert "give weights of this network" in capsys.readouterr().err
    assert new_project(tmp_path, "--encoder", "test_resnet", *flags) == 0
    start("train", config, "--cfg-options", *FEW, "optim_wrapper.optimizer.lr=0")
    old, new = read_state_dict(tmp_path / "old.pth"), read_state_dict(run / "iter_2.pth")
    key = "backbone.model.conv1.0.weight"
    assert torch.equal(old[key], new[key])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--encoder", "convnext_tinny"], "did you mean convnext_tiny"),
        (["--encoder", "convnext_tiny.fb_in22"], "it has convnext_tiny.fb_in22k"),
        (
            ["--encoder", "test_vit"],
            "--from FILE (model.safetensors of https://huggingface.co/timm",
        ),
        (["--encoder", "test_vit", "--from", "resnet18"], "--from scratch for random weights"),
        (["--encoder", "test_vit", "--from", "nothing.pth"], "neither a file nor download"),
        (["--encoder", "levit_128s", "--from", "scratch"], "takes only images of 224x224"),
        (["--encoder", "crossvit_9_240", "--from", "scratch"], "has maps of strides"),
    ],
)
def test_networks_that_cannot_be_taken(flags, message, tmp_path, capsys):
    """One line says what to do, before anything is written."""
    assert new_project(tmp_path, *flags) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "project").exists()


def test_weights_that_do_not_fit(tmp_path, capsys):
    """Missing and unexpected tensors, and other shapes, are named; classifiers are passed over."""
    weights, file = timm.create_model("test_vit").state_dict(), tmp_path / "weights.pth"
    flags = ["--encoder", "test_vit", "--from", str(file)]
    for changes, message in (
        ({"blocks.2.norm1.weight": None}, "blocks.2.norm1.weight are missing"),
        ({"blocks.9.norm1.weight": torch.zeros(64)}, "blocks.9.norm1.weight are not of this"),
        ({"cls_token": torch.zeros(1, 1, 65)}, "cls_token have other shapes"),
    ):
        changed = {k: v for k, v in {**weights, **changes}.items() if v is not None}
        torch.save(changed, file)
        assert new_project(tmp_path, *flags) == 1
        assert message in capsys.readouterr().err
    torch.save(timm.create_model("test_resnet").state_dict(), file)
    assert new_project(tmp_path, *flags) == 1
    assert "give weights of this network" in capsys.readouterr().err
    del weights["head.weight"]
    torch.save({"state_dict": weights}, file)
    assert new_project(tmp_path, *flags) == 0


def test_a_download(tmp_path, capsys, monkeypatch):
    """Happens when the project is made; without the network one line says what to do."""
    create = timm.create_model

    def fail(name, pretrained=False, **settings):
        if pretrained:
            raise OSError("no network")
        return create(name, **settings)

    monkeypatch.setattr(timm, "create_model", fail)
    flags = ["--encoder", "test_resnet.r160_in1k", "--from", "download"]
    assert new_project(tmp_path, *flags) == 1
    assert "no network; download model.safetensors of https://huggingface.co/timm/test_resnet" in (
        capsys.readouterr().err
    )
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **k: create(name, **k))
    assert new_project(tmp_path, *flags) == 0
    assert "license of the weights: apache-2.0" in capsys.readouterr().out
    assert (tmp_path / "project/encoder.safetensors").is_file()


def test_without_timm(tmp_path, capsys, monkeypatch):
    assert new_project(tmp_path, "--encoder", "test_vit", "--from", "scratch") == 0
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="timm]"):
        get_model(str(tmp_path / "project/config.py"))
    shutil.rmtree(tmp_path / "project")
    assert new_project(tmp_path, "--encoder", "test_vit", "--from", "scratch") == 1
    assert "timm]" in capsys.readouterr().err
