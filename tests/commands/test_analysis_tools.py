"""The analysis tools against counts made by hand, and publishing weights."""

import errno
import json
import os
import subprocess

import numpy as np
import pytest
import torch
from mmengine.runner import save_checkpoint
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from mmseg_ext.checkpoint.safe_reading import read_checkpoint, read_state_dict
from mmseg_ext.commands import confusion_matrix as confusion_command
from mmseg_ext.commands import publish_model as publishing


def predictions(folder, size=(24, 32), count=21) -> tuple[list[str], np.ndarray]:
    """A config's data of `count` classes, predictions for it, and the pixels counted one by one."""
    random = np.random.RandomState(0)
    for name in ("images", "labels", "predicted"):
        (folder / name).mkdir()
    expected = np.zeros((count, count), dtype=int)
    for name in ("b", "a"):
        truth = random.randint(0, count, size).astype(np.uint8)
        predicted = np.where(random.rand(*size) < 0.5, truth, random.randint(0, count, size))
        for t, p in zip(truth.flat, predicted.flat, strict=True):
            expected[t, p] += 1
        truth[0, 0], before = 255, truth[0, 0]
        expected[before, predicted[0, 0]] -= 1
        Image.fromarray(truth).save(folder / "labels" / f"{name}.png")
        Image.fromarray(predicted.astype(np.uint8)).save(folder / "predicted" / f"{name}.png")
        Image.new("RGB", size[::-1]).save(folder / "images" / f"{name}.jpg")
    (folder / "list.txt").write_text("b\na\n")  # not in the order of the names
    (folder / "config.py").write_text(
        "custom_imports = dict(imports=['mmseg_ext'], allow_failed_imports=False)\n"
        f"test_dataloader = dict(dataset=dict(type='BaseSegDataset', data_root={str(folder)!r},\n"
        "    data_prefix=dict(img_path='images', seg_map_path='labels'), ann_file='list.txt',\n"
        f"    metainfo=dict(classes={tuple(f'class {i}' for i in range(count))}),\n"
        "    pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),\n"
        "              dict(type='PackSegInputs')]))\n"
    )
    return [str(folder / "config.py"), str(folder / "predicted"), str(folder / "out")], expected


def test_confusion_of_21_classes(tmp_path, capsys):
    """As many as VOC has: products of uint8 labels wrap from 17 classes on."""
    words, expected = predictions(tmp_path)
    assert confusion_command.main(words) == 0
    rows = (tmp_path / "out/confusion_matrix.csv").read_text().splitlines()
    counts = np.array([[int(cell) for cell in row.split(",")[1:]] for row in rows[1:]])
    assert (counts == expected).all() and counts.sum() == 2 * 24 * 32 - 2
    assert rows[0].startswith("truth,class 0,class 1,")
    with Image.open(tmp_path / "out/confusion_matrix.png") as picture:
        assert min(picture.size) > 1000

    assert confusion_command.main([*words, "--color-theme", "Paisley"]) == 1
    assert capsys.readouterr().err == "error: --color-theme: matplotlib has no 'Paisley'\n"

    (tmp_path / "predicted/a.png").unlink()
    assert confusion_command.main(words) == 1
    assert "a.png: no prediction for" in capsys.readouterr().err


def test_confusion_refuses_what_is_no_class(tmp_path, capsys):
    """Of a dataset with `reduce_zero_label` predictions start at 1: a 0 would be class -1."""
    words, _ = predictions(tmp_path, count=3)
    config = tmp_path / "config.py"
    text = config.read_text().replace("ann_file=", "reduce_zero_label=True, ann_file=")
    config.write_text(text)
    for name in ("labels", "predicted"):  # one above the class, but for one prediction
        for path in (tmp_path / name).iterdir():
            pixels = np.asarray(Image.open(path)) + 1
            Image.fromarray(np.where(pixels == 0, 255, pixels).astype(np.uint8)).save(path)
    assert confusion_command.main(words) == 0
    pixels = np.array(Image.open(tmp_path / "predicted/b.png"))
    pixels[3, 4] = 0
    Image.fromarray(pixels).save(tmp_path / "predicted/b.png")
    assert confusion_command.main(words) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"error: {tmp_path / 'predicted/b.png'}: labels must be from 0 on")
    assert line.endswith("below classes=3, got -1 in the prediction\n")


def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path, monkeypatch, capsys):
    words, _ = predictions(tmp_path, count=3)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    picture = tmp_path / "out/confusion_matrix.png"
    picture.parent.mkdir()
    picture.write_text("good")
    assert confusion_command.main(words) == 1
    line = capsys.readouterr().err
    assert line == f"error: {picture} cannot be written: No space left on device\n"
    assert [path.read_text() for path in picture.parent.iterdir()] == ["good"]


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_published_weights(suffix, tmp_path, capsys):
    """The weights and the classes alone, under a name that ends in the file's own hash."""
    meta = {"dataset_meta": {"classes": ("a", "b"), "palette": [[0, 0, 0], [1, 2, 3]]}}
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
    assert publishing.main(words) == 0
    (path,) = tmp_path.glob("depth-*")
    assert capsys.readouterr().out == f"{path}\n"
    assert path.suffix == suffix
    digest = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
    assert path.stem == f"depth-{digest[:8]}"
    read = read_state_dict(path)
    assert read.keys() == weights.keys()
    assert all((read[name] == value).all() for name, value in weights.items())
    assert b"secret" not in path.read_bytes()
    if suffix == ".pth":
        assert set(read_checkpoint(path)) == {"state_dict", "meta"}
    else:
        assert load_file(path).keys() == weights.keys()
        with safe_open(path, "pt") as file:
            saved = json.loads(file.metadata()["dataset_meta"])
        assert saved["palette"] == meta["dataset_meta"]["palette"]


def test_publishing_refuses_another_suffix(tmp_path, capsys):
    assert publishing.main(["a.pth", str(tmp_path / "a.bin")]) == 1
    assert "name must end in .pth or .safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_publishing_into_a_missing_folder_is_one_line(suffix, tmp_path, capsys):
    source, path = tmp_path / "iter_1.pth", tmp_path / f"none/a{suffix}"
    torch.save({"state_dict": {"w": torch.zeros(2)}}, source)
    assert publishing.main([str(source), str(path)]) == 1
    assert capsys.readouterr().err == f"error: {path}: there is no folder {path.parent}\n"
    assert list(tmp_path.iterdir()) == [source]
