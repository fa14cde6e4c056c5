"""The command `export` without an exporter: sizes, metadata, images, and the comparison."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmseg_ext import Predictor, get_model
from mmseg_ext.commands import run
from mmseg_ext.inference import export as module  # replaced by the fixture
from mmseg_ext.segmentors.score_maps import labels_of
from tests.configs import CONFIGS
from tests.datasets.trees import random_image, save
from tests.messages import check_message, lines_with
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")


@pytest.fixture
def exported(monkeypatch):
    """The arguments of `write_onnx`, and a factor for the scores of its file."""
    given = {"factor": 1.0}

    def write(model, path, size, dynamic, metadata, channels, name):
        given.update(model=model, size=size, dynamic=dynamic, metadata=metadata, channels=channels)
        given["name"] = name  # in errors
        path.write_bytes(b"written")

    def read(path):
        assert path.read_bytes() == b"written"
        return lambda images: given["model"](images) * given["factor"]

    monkeypatch.setattr(module, "write_onnx", write)
    monkeypatch.setattr(module, "ExportedSegmentor", read)
    return given


@pytest.fixture
def folder(tmp_path):
    for i in range(4):
        pixels = random_image(np.random.RandomState(i), (50 + i, 40))
        save(tmp_path / f"images/deep/{i}.png", pixels)
    return tmp_path / "images"


def compared(printed: str) -> list[str]:
    return re.findall(r"^(.*): .*\b100(?:\.0+)?%", printed, re.M)


def test_inputs_and_metadata(exported, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [CONFIG, "none", "--images", str(folder)]
    assert run("export", [*words, "--dynamic", "--shape", "64", "80"]) == 0
    printed = capsys.readouterr().out
    assert compared(printed) == ["random, 1x3x64x80", "random, 2x3x49x103"] + [
        f"{i}.png, 1x3x40x{50 + i}" for i in range(3)
    ]
    assert printed.splitlines()[-1] == "ea_r18_shapes.onnx: 0.0 MB"
    assert (tmp_path / "ea_r18_shapes.onnx").is_file() and "sliding" not in printed
    assert exported["size"] == (64, 80) and exported["dynamic"]
    told = exported["metadata"]
    assert (told["config"], told["size"]) == ("ea_r18_shapes.py", [64, 80])
    assert told["dynamic"] and (told["scale"], told["keep_ratio"]) == (None, True)
    assert len(told["classes"]) == len(told["palette"]) == 6
    assert told["mean"] == pytest.approx([123.675, 116.28, 103.53])

    (folder / "a.png").write_bytes(b"")
    (folder / "deep/1.png").write_bytes(b"damaged")
    assert run("export", [*words, "--shape", "32", "48"]) == 0
    names = [f"{name}, 1x3x32x48" for name in ("random", "0.png", "2.png", "3.png")]
    captured = capsys.readouterr()
    assert compared(captured.out) == names
    assert lines_with(captured.err, "warning", f"{folder}/a.png")
    assert lines_with(captured.err, "warning", f"{folder}/deep/1.png")
    for path in (folder / "deep").iterdir():
        path.unlink()
    assert run("export", words) == 1
    assert lines_with(capsys.readouterr().err, f"--images {folder}")


def test_a_config_of_python_has_no_name(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = get_model(Config(Config.fromfile(CONFIG).to_dict()))
    assert module.export(model, shape=[32]).path == Path("model.onnx")
    assert exported["metadata"]["config"] == "model.py" and Path("model.onnx").is_file()
    with pytest.raises(ValueError, match="weights"):  # which would not be in the file
        module.export(model, "weights.pth")


def test_a_config_of_windows_and_resized_images(exported, tmp_path, capsys):
    """The default size is the crop; without --images only noise is compared."""
    path = tmp_path / "own.py"
    path.write_text(
        f"_base_ = {CONFIG!r}\n"
        "crop_size = (48, 64)\n"
        "model = dict(test_cfg=dict(mode='slide', crop_size=crop_size, stride=(32, 32)))\n"
        "load, *rest = _base_.test_pipeline\n"
        "resize = dict(type='Resize', scale=(80, 60))\n"
        "test_dataloader = dict(dataset=dict(pipeline=[load, resize, *rest]))\n"
    )
    assert run("export", [str(path), "none", "--out", str(tmp_path / "a.onnx")]) == 0
    printed = capsys.readouterr().out
    assert lines_with(printed, "(48, 64)")
    assert compared(printed) == ["random, 1x3x48x64"]
    words = [str(path), "none", "--out", str(tmp_path / "b.onnx")]
    assert run("export", [*words, "--images", str(tmp_path / "none")]) == 1
    assert (
        lines_with(capsys.readouterr().err, "--images", tmp_path / "none")
        and not (tmp_path / "b.onnx").exists()
    )
    assert tuple(exported["metadata"]["scale"]) == (80, 60)
    assert exported["metadata"]["keep_ratio"] is False


def test_what_fails_does_not_stay(exported, folder, tmp_path, capsys):
    """And the file that was there before does."""
    path = tmp_path / "out" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(b"before")
    words = [CONFIG, "none", "--shape", "32", "--out", str(path), "--images", str(folder)]
    for factor in (1.00015, float("nan")):
        exported["factor"] = factor
        assert run("export", words) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"{path}: " in error
        assert path.read_bytes() == b"before" and list(path.parent.iterdir()) == [path]
    exported["factor"] = 1.00005
    assert run("export", words) == 0 and path.read_bytes() == b"written"
    assert exported["name"] == path


def test_a_file_that_does_not_load_is_named_by_its_own_name(
    exported, tmp_path, monkeypatch, capsys
):
    """And the temporary file is not named, nor are terminal codes printed."""

    def read(path):
        raise RuntimeError(f"\x1b[96mLoad model from {path} failed\x1b[0m")

    monkeypatch.setattr(module, "ExportedSegmentor", read)
    path = tmp_path / "a.onnx"
    assert run("export", [CONFIG, "none", "--out", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mmseg_ext: {path}: ") and error.count("\n") == 1
    assert f"from {path} failed" in error and ".part" not in error and "\x1b" not in error


@pytest.mark.parametrize("name", ["iter_1.pth", "own.py", "model", ".", "images/0.png"])
def test_an_output_of_another_ending_replaces_no_input(
    name, exported, tmp_path, monkeypatch, capsys
):
    """As the checkpoint, the config, or an image."""
    monkeypatch.chdir(tmp_path)
    if name != ".":
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before")
    assert run("export", [CONFIG, "none", "--out", name]) == 1
    error = capsys.readouterr().err
    assert lines_with(error, f"{name}:", ".onnx") and error.count("\n") == 1
    assert name == "." or (tmp_path / name).read_text() == "before"
    assert not exported.keys() - {"factor"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("iter_1.pth", "config"),
        ("iter_1.safetensors", "config"),
        ("nosuch", "mmseg_ext.list_models"),
        ("ea_r18_shape", "'ea_r18_shapes'"),
        (CONFIG, "checkpoint"),
        ("ea_r18_shapes", "checkpoint"),
    ],
)
def test_one_word_that_is_no_model_with_weights(name, told, exported, capsys):
    """The line asks for the part that is missing."""
    for command in ("export", "image_demo"):
        words = [name] if command == "export" else ["photo.png", name]
        assert run(command, words) == 1
        error = capsys.readouterr().err.removeprefix("mmseg_ext: ")
        check_message(error, name, todo=told)
        assert error.count("\n") == 1


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_binary_head_has_its_threshold_in_the_file(dynamic, exported, folder, tmp_path, capsys):
    """And the labels of photos are those of `Predictor`."""
    config, weights = tmp_path / "own.py", tmp_path / "weights.pth"
    config.write_text(
        f"_base_ = {CONFIG!r}\n"
        "dataset = dict(_delete_=True, type='BaseSegDataset', metainfo=dict(classes=('bg', 'fg')),"
        "    pipeline=_base_.test_pipeline)\n"
        "test_dataloader = dict(dataset=dataset)\n"
        "loss = dict(type='CrossEntropyLoss', use_sigmoid=True)\n"
        "model = dict(decode_head=dict("
        "    num_classes=2, out_channels=1, threshold=0.1, loss_decode=loss))\n"
    )
    model = randomise(get_model(config))
    photo = torch.rand(1, 3, 50, 40) * 255
    with torch.no_grad():  # probabilities on both sides of 0.1
        model.decode_head.conv_seg.weight.mul_(100)
        middle = module.WholeImageSegmentor(model)(photo).median()
        model.decode_head.conv_seg.bias.sub_(middle + 2.2)  # log(0.1 / 0.9) = -2.2
    torch.save({"state_dict": model.state_dict()}, weights)
    words = [str(config), str(weights), "--images", str(folder), "--out", str(tmp_path / "a.onnx")]
    assert run("export", words + ["--dynamic"] * dynamic + ["--shape", "56"] * (not dynamic)) == 0
    captured = capsys.readouterr()
    metadata = exported["metadata"]
    assert metadata["threshold"] == 0.1 and "(B, 1, H, W)" in metadata["output"]
    used = [float(share) for share in re.findall(r"image_demo ([\d.]+)%", captured.out)]
    assert len(used) == 3 and (min(used) > 99.9 if dynamic else min(used) > 50)
    labels = Predictor(model)(folder / "deep/0.png").labels
    assert 0.02 < labels.mean() < 0.98
    assert labels_of(torch.tensor([[[-2.3, -2.1]]]).sigmoid(), 0.1, 0).tolist() == [[0, 1]]


def test_a_file_that_gives_other_labels_than_the_model_is_a_warning(
    exported, folder, tmp_path, monkeypatch, capsys
):
    original = module.segment
    monkeypatch.setattr(module, "segment", lambda *args: 5 - original(*args))
    words = [CONFIG, "none", "--images", str(folder), "--out", str(tmp_path / "a.onnx")]
    for more, todo in (("--dynamic", "test pipeline"), ("--shape=56", "--dynamic")):
        assert run("export", [*words, more]) == 0
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 3
        for i, line in enumerate(lines):
            check_message(line, "image_demo", where=f"warning: {i}.png: ", todo=todo)


@pytest.mark.parametrize(
    ("steps", "preprocessor", "told"),
    [
        ("dict(type='Pad', size_divisor=32), *rest", "", "Pad"),
        ("dict(type='CLAHE'), dict(type='Resize', scale=(50, 50)), *rest", "", "CLAHE"),
        (
            "dict(type='Resize', scale=(9, 9)), dict(type='Resize', scale=(50, 50)), *rest",
            "",
            "Resize",
        ),
        (
            "dict(type='Resize', scale=(50, 50), backend='pillow'), *rest",
            "",
            "Resize(backend='pillow')",
        ),
        ("*rest", "size_divisor=32", "data_preprocessor.test_cfg.size_divisor=32"),
        ("*rest", "size=(64, 64)", "data_preprocessor.test_cfg.size=(64, 64)"),
        ("dict(type='RandomFlip', prob=0.0), dict(type='Resize', scale=(50, 50)), *rest", "", None),
    ],
)
def test_what_the_file_leaves_out_of_the_test_is_named(
    steps, preprocessor, told, exported, tmp_path, capsys
):
    """Transforms besides one `Resize`, and padding of batches."""
    config = tmp_path / "own.py"
    config.write_text(
        f"_base_ = {CONFIG!r}\n"
        "load, *rest = _base_.test_pipeline\n"
        f"test_dataloader = dict(dataset=dict(pipeline=[load, {steps}]))\n"
        f"model = dict(data_preprocessor=dict(test_cfg=dict({preprocessor})))\n"
    )
    words = [str(config), "none", "--dynamic", "--out", str(tmp_path / "a.onnx")]
    assert run("export", words) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "leaves out" in line]
    assert len(notes) == (told is not None)
    assert all(f"leaves out {told} of" in note for note in notes)


@pytest.mark.parametrize("shape", ["1 3 64 64", "-64", "0", "64 0", "64 64 3"])
def test_a_shape_has_two_sides_of_at_least_a_pixel(shape, exported, tmp_path, capsys):
    """The error comes before the model is built."""
    words = ["no_model", "none", "--out", str(tmp_path / "a.onnx"), "--shape", *shape.split()]
    assert run("export", words) == 1
    error = capsys.readouterr().err.removeprefix("mmseg_ext: ")
    check_message(error, where=f"--shape {shape}: ")
    assert error.count("\n") == 1 and not exported.keys() - {"factor"}
