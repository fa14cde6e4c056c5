"""Projects of images with any number of bands, from the command that makes them to the export."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from mmengine.config import Config
from PIL import Image

from mmseg_ext import Predictor, get_model
from mmseg_ext.commands import run
from mmseg_ext.datasets import (
    CheckedLoadImage,
    image_loading,  # a process warns once
)
from mmseg_ext.errors import UnreadableFileError
from tests.commands.test_export import EXAMPLE
from tests.datasets.trees import save
from tests.messages import lines_with

SIZE, INSIDE = (40, 48), np.s_[8:24, 10:34]
LABEL = np.zeros(SIZE, np.uint8)
LABEL[INSIDE] = 1
FEW = [
    "randomness.seed=0",
    "train_cfg.max_iters=2",
    "train_cfg.val_interval=2",
    "default_hooks.checkpoint.interval=2",
]
FEW += ["train_dataloader.num_workers=0", "train_dataloader.persistent_workers=False"]
FEW += ["val_dataloader.num_workers=0", "val_dataloader.persistent_workers=False"]
TEST = ["test_dataloader.num_workers=0", "test_dataloader.persistent_workers=False"]


def bands_of(seed: int, count: int) -> np.ndarray:
    """Return reflectances (H, W, count); band i of the object is 1000 + 100 i brighter."""
    values = np.random.RandomState(seed).randint(100, 200, (*SIZE, count))
    values[INSIDE] += 1000 + 100 * np.arange(count)
    return values.astype(np.uint16)


def write_sources(folder: Path, count: int, dtype: type = np.uint16) -> list[str]:
    for i in range(4):
        save(folder / f"masks/{i}.png", LABEL)
        (folder / "images").mkdir(exist_ok=True)
        options = dict(photometric="minisblack", planarconfig="contig" if count > 1 else None)
        if count == 4:  # GDAL declares the last one as alpha
            options = dict(photometric="rgb", extrasamples=["unassalpha"])
        pixels = bands_of(i, count).astype(dtype)
        tifffile.imwrite(folder / f"images/{i}.tif", pixels, **options)
    return ["--images", str(folder / "images"), "--masks", str(folder / "masks")]


def start_command(name: str, *words: object) -> None:
    assert run(name, list(map(str, words))) == 0, name


KINDS = {  # a file of another kind in a project of 8-bit photos, and what every reader tells
    "pages": (dict(photometric="minisblack"), np.uint8, "has 3 images"),
    "planes": (dict(photometric="minisblack", planarconfig="separate"), np.uint8, None),
    "dark": (dict(photometric="rgb", planarconfig="separate"), np.uint16, "uses 8 of 16 bits"),
    "signed": (dict(photometric="rgb", planarconfig="separate"), np.int16, "has int16 values from"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_readers_agree(kind, tmp_path, capsys, monkeypatch):
    """The loader in check_dataset, new_project, Predictor, image_demo and run_exported.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_loading, "warned_kinds", set())
    options, dtype, told = KINDS[kind]
    planes = np.random.RandomState(0).randint(0, 256, (3, *SIZE))
    flags = write_sources(tmp_path, 3, np.uint8)
    start_command("new_project", "project", *flags, "--from", "scratch")
    image, work = tmp_path / "images/0.tif", tmp_path / "project/data/images"
    tifffile.imwrite(image, planes.astype(dtype), **options)  # new_project has linked it
    error = kind in ("pages", "signed")

    def shown() -> str:
        captured = capsys.readouterr()
        return captured.out + captured.err

    shown()
    assert any(path.resolve() == image for path in work.glob("*/0.tif"))
    assert run("check_dataset", ["project/config.py", "--workers", "0"]) == error
    printed = shown()
    assert told is None or any(told in line and "0.tif: " in line for line in printed.splitlines())
    assert ("0.tif" in printed) == (told is not None)

    model = get_model("project/config.py")
    expected = planes.astype(np.uint8).transpose(1, 2, 0) >> (8 if kind == "dark" else 0)
    if error:
        with pytest.raises(UnreadableFileError) as caught:
            Predictor(model)(image)
        assert str(told) in str(caught.value)
    else:
        assert (Predictor(model)(image).image == expected).all()
    image_loading.warned_kinds.clear()
    assert run("image_demo", ["images/0.tif", "project/config.py", "none"]) == error
    assert (told or "") in shown()

    example, seen = runpy.run_path(EXAMPLE), []
    metadata = dict(channels=3, value_range=None, rgb_bands=[1, 2, 3], dynamic=True, scale=None)
    metadata |= dict(classes=["background", "object"])
    metadata |= dict(keep_ratio=True, palette=np.zeros((2, 3), np.uint8), scale_factor=None)
    metadata |= dict(image_sides=None, window=None, stride=None)
    network = lambda x: seen.append(x[0]) or x[:, :2]  # noqa: E731
    example["main"].__globals__["load"] = lambda path: (network, metadata)
    monkeypatch.setattr("sys.argv", [EXAMPLE, "m.onnx", "images/0.tif", "exported"])
    assert example["main"]() == error
    assert (told or "") in shown()
    assert error or (seen[0] == expected.transpose(2, 0, 1)).all()

    assert run("new_project", ["other", *flags, "--from", "scratch"]) == 0
    left_out = (tmp_path / "other/left_out.txt").read_text()
    assert (told in left_out) if kind == "pages" else left_out == ""


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_every_command_takes_the_bands_of_a_project(count, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rgb = [count, 1, 1]
    flags = [*write_sources(tmp_path, count), "--from", "scratch", "--rgb", *rgb]
    start_command("new_project", "project", *flags)
    assert len(lines_with(capsys.readouterr().out, "note", "alpha")) == (count == 4)
    config, work = tmp_path / "project/config.py", tmp_path / "project/work_dir"
    settings = Config.fromfile(config)
    assert settings.model.backbone.in_channels == count and settings.rgb_bands == rgb
    limits = np.array(settings.load.value_range)
    assert limits.shape == (count, 2) and (abs(limits[:, 0] - 100) < 3).all()
    assert (abs(limits[:, 1] - 1199 - 100 * np.arange(count)) < 5).all()
    capsys.readouterr()
    start_command("check_dataset", config, "--workers", 0)
    assert ": clean" in capsys.readouterr().out
    start_command("train", config, "--cfg-options", *FEW)
    checkpoint, image = work / "iter_2.pth", tmp_path / "images/0.tif"
    start_command("test", config, checkpoint, "--tta", "--cfg-options", *TEST)
    start_command("report", work)
    start_command("image_demo", image, config, checkpoint)
    start_command("attention_maps", config, checkpoint, image)
    start_command("model_cost", config)
    example = next(work.glob("*/examples/0.jpg"))
    seen = np.asarray(Image.open(example)).astype(int)[: SIZE[0], : SIZE[1]]
    assert seen[INSIDE].mean() > 200 > 100 > seen[LABEL == 0].mean()

    model = get_model(config, weights=checkpoint)
    predictor, pixels = Predictor(model), bands_of(0, count)
    result = predictor(image)
    assert (result.labels == predictor(pixels).labels).all()
    assert (result.labels == np.asarray(Image.open("outputs/labels/0.png"))).all()
    loader = CheckedLoadImage(channels=count, value_range=limits.tolist())
    loaded = loader.transform({"img_path": str(image)})["img"]
    assert (result.image == loaded[..., [band - 1 for band in rgb]]).all()
    with pytest.raises(ValueError, match=rf"shape \(40, 48, 5\); .*\(H, W, {count}\)"):
        predictor(np.zeros((*SIZE, 5), np.uint8))
    assert run("test", [str(config), str(checkpoint), "--show-dir", "shown"]) == (count != 1)
    if count not in (1, 6):  # an export takes long
        return
    scores = Predictor(model, scores=True)(image).scores.astype(np.float32)
    with torch.no_grad():  # each class gets half of the pixels
        model.decode_head.conv_seg.bias[0] += float(np.median(np.log(scores[1] / scores[0])))
    torch.save(dict(state_dict=model.state_dict()), "half.pth")
    labels = predictor(image).labels
    assert 0.4 < labels.mean() < 0.6
    # A file of a fixed size takes the image with a margin, which changes all scores.
    start_command("export", config, "half.pth", "--dynamic", "--out", "m.onnx", "--images", image)
    monkeypatch.setattr("sys.argv", [EXAMPLE, "m.onnx", "images", "exported"])
    assert runpy.run_path(EXAMPLE)["main"]() == 0
    agreement = (labels == np.asarray(Image.open("exported/labels/0.png"))).mean()
    assert agreement > 0.98  # the reduced image is rounded only here
