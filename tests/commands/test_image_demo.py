"""The demo over images and folders, and mmsegmentation's own ways to predict."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from mmseg.apis import inference_model, init_model
from PIL import Image

from mmseg_ext import Predictor, get_model
from mmseg_ext.commands import run
from tests.configs import CONFIGS
from tests.datasets.trees import random_image, save
from tests.engine.runs import ROOT
from tests.messages import lines_with
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
WEIGHTS = ROOT / "mmseg_ext/weights/ea_r18_fpn_nuclei_4k.pth"
META = {"classes": list("abcdef"), "palette": [[40 * i, 0, 9] for i in range(6)]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    torch.manual_seed(0)
    model = randomise(get_model(CONFIG))
    with torch.no_grad():
        model.decode_head.conv_seg.weight.mul_(100)  # scores that differ between pixels
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save({"state_dict": model.state_dict(), "meta": {"dataset_meta": META}}, path)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """Five images of three shapes, one of them truncated, in a tree."""
    root, random = tmp_path / "images", np.random.RandomState(0)
    sizes = {"a.png": (64, 64), "a.bmp": (80, 48), "b.png": (64, 64), "deep/c.png": (70, 50)}
    for name, size in sizes.items():
        save(root / name, random_image(random, size))
    (root / "z.png").write_bytes((root / "a.png").read_bytes()[:2000])
    os.mkfifo(root / "pipe.jpg")  # reading it would wait for ever
    (root / "folder.jpg").mkdir()
    for hidden in ("._a.png", "deep/._c.png", ".ipynb_checkpoints/a-checkpoint.png"):
        save(root / hidden, np.zeros((9, 9), np.uint8))
    return root


def read(path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_a_folder_is_segmented_and_broken_images_are_named(folder, checkpoint, capsys):
    """Subfolders only with --recursive; results in the folder are no input of a second run."""
    out = folder / "out"
    words = [str(folder), CONFIG, checkpoint, "--out", str(out)]
    assert run("image_demo", words) == 1
    assert not (out / "labels/deep").exists()
    words.append("--recursive")
    for _ in range(2):
        assert run("image_demo", words) == 1
        captured = capsys.readouterr()
        assert lines_with(captured.out, 4, out)
        assert lines_with(captured.err, f"{folder}/z.png:", 2000)
    images = {"a.png.png": "a.png", "a.png": "a.bmp"}
    images |= {name: name for name in ("b.png", "deep/c.png")}
    assert {str(p.relative_to(out / "labels")) for p in out.glob("labels/**/*.png")} == set(images)
    model = init_model(CONFIG, checkpoint, device="cpu")
    for result, image in images.items():
        expected = inference_model(model, str(folder / image)).pred_sem_seg.data[0].numpy()
        labels = read(out / "labels" / result)
        assert (labels == expected).all()
        overlay = read(out / "overlays" / result)[: labels.shape[0], : labels.shape[1]].astype(int)
        mixed = (read(folder / image) + np.array(META["palette"])[labels]) / 2
        assert np.abs(overlay - mixed).max() <= 1


def test_results_beside_the_images(folder, checkpoint, tmp_path, monkeypatch):
    """With `--out .` and with the folder of the images."""
    (tmp_path / "photos").mkdir()
    Image.open(folder / "a.png").save(tmp_path / "photos/a.png")
    monkeypatch.chdir(tmp_path)
    for image, out in (("photos", "."), ("photos/a.png", "photos")):
        assert run("image_demo", [image, CONFIG, checkpoint, "--out", out]) == 0
        assert Path(out, "labels/a.png").is_file()


def test_large_and_tiny_images(folder, checkpoint, tmp_path, capsys):
    save(folder / "one.png", np.zeros((1, 1, 3), np.uint8))
    words = [str(folder), CONFIG, checkpoint, "--out", str(tmp_path / "out"), "--max-pixels"]
    assert run("image_demo", [*words, str(64 * 64 - 1)]) == 1
    assert len(lines_with(capsys.readouterr().err, "--max-pixels")) == 3
    huge = b"P5 20000 16106 255\n"  # the header is enough
    (tmp_path / "huge.ppm").write_bytes(huge)
    assert run("image_demo", [str(tmp_path / "huge.ppm"), *words[1:-1]]) == 1
    error = capsys.readouterr().err
    assert lines_with(error, "huge.ppm:", "20000x16106", "5.1 GiB", "--max-pixels 322120000")
    assert run("image_demo", [*words, str(64 * 64)]) == 1  # because of the truncated one
    names = {"one.png", "a.png.png", "a.png", "b.png"}
    assert {p.name for p in (tmp_path / "out/labels").iterdir()} == names
    assert read(tmp_path / "out/labels/one.png").shape == (1, 1)
    plain = read(tmp_path / "out/overlays/b.png")
    assert run("image_demo", [str(folder / "b.png"), *words[1:], "5000", "--with-labels"]) == 0
    named = read(tmp_path / "out/overlays/b.png")
    assert named.shape == plain.shape and (named != plain).any()


def test_objects_are_measured_and_exported(folder, checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(folder), CONFIG, checkpoint, "--recursive", "--out", str(out)]
    words += ["--json", "--coco", "--csv", "--min-area", "3", "--tile", "48"]
    assert run("image_demo", words) == 1  # because of the truncated one
    predictor = Predictor(get_model(CONFIG, weights=checkpoint), tile=48)
    coco = json.loads((out / "coco.json").read_text())
    names = ["a.bmp", "a.png", "b.png", "deep/c.png"]
    assert [image["file_name"] for image in coco["images"]] == names
    assert [category["name"] for category in coco["categories"]] == META["classes"]
    assert len({annotation["id"] for annotation in coco["annotations"]}) == len(coco["annotations"])
    with (out / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    for image, row in zip(coco["images"], rows, strict=True):
        result = predictor(folder / image["file_name"])
        height, width = result.labels.shape
        assert (image["height"], image["width"]) == (height, width) and row["height"] == str(height)
        expected = [found for name in META["classes"] for found in result.objects(name, 3)]
        file = "a.png" if row["file_name"] == "a.png" else row["file_name"][:-4]
        features = json.loads((out / "objects" / f"{file}.geojson").read_text())["features"]
        own = [a for a in coco["annotations"] if a["image_id"] == image["id"]]
        assert len(expected) >= 2
        for found, feature, annotation in zip(expected, features, own, strict=True):
            assert feature["properties"]["area"] == annotation["area"] == found.area
            assert META["classes"][annotation["category_id"] - 1] == found.name
            color = META["palette"][META["classes"].index(found.name)]
            assert feature["properties"]["classification"] == dict(name=found.name, color=color)
        for i, name in enumerate(META["classes"]):
            assert float(row[f"{name} share"]) == pytest.approx(
                (result.labels == i).mean(), abs=1e-6
            )
            assert row[f"{name} objects"] == str(len(result.objects(name, 3)))
    words = [str(folder / "b.png"), *words[1:6], "--csv", "--classes"]
    assert run("image_demo", [*words, "c", "g"]) == 1
    assert "--classes g: " in capsys.readouterr().err
    assert run("image_demo", [*words, "c"]) == 0
    header = (out / "classes.csv").read_text().splitlines()[0]
    assert header == "file_name,width,height,c share,c objects"


def test_counts_leave_out_specks_and_the_background(tmp_path, capsys):
    """By default objects of less than 16 pixels, as the network sees them.

    The name of a config with weights needs no checkpoint.
    """
    config, half = CONFIGS / f"{WEIGHTS.stem}.py", tmp_path / "half.py"
    image = ROOT / "demo/nuclei.png"
    side = Image.open(image).size[0] // 2
    half.write_text(
        f"_base_ = {str(config)!r}\npipeline = _base_.test_dataloader['dataset']['pipeline']\n"
        "test_dataloader = dict(dataset=dict(pipeline=[pipeline[0], dict(type='Resize',\n"
        f"    scale=({side}, {side}), keep_ratio=True), *pipeline[1:]]))\n"
    )
    for words, least in (([WEIGHTS.stem], 16), ([str(half), str(WEIGHTS)], 64)):
        flags = ["--csv", "--json", "--out", str(tmp_path / "out")]
        assert run("image_demo", [str(image), *words, *flags]) == 0
        with (tmp_path / "out/classes.csv").open() as file:
            (row,) = csv.DictReader(file)
        result = Predictor(*words)(image)
        areas = {c: [found.area for found in result.objects(c)] for c in ("nucleus", "border")}
        assert "background share" in row and "background objects" not in row
        for name, own in areas.items():
            assert row[f"{name} objects"] == str(sum(area >= least for area in own))
        small = sum(area < least for own in areas.values() for area in own)
        assert small and lines_with(capsys.readouterr().out, small, "--min-area 0")
        features = json.loads((tmp_path / "out/objects/nuclei.geojson").read_text())["features"]
        assert len(features) == sum(map(len, areas.values())) - small


def test_the_lowest_value_of_masks_without_names_is_no_object(tmp_path):
    weights = tmp_path / "unnamed.pth"
    content = torch.load(WEIGHTS, weights_only=True)
    content["meta"]["dataset_meta"]["classes"] = ["class_0", "class_1", "class_2"]
    torch.save(content, weights)
    words = [WEIGHTS.stem, str(weights), "--csv"]
    assert run("image_demo", [str(ROOT / "demo/nuclei.png"), *words, "--out", str(tmp_path)]) == 0
    header = (tmp_path / "classes.csv").read_text().splitlines()[0].split(",")
    assert [name for name in header if "objects" in name] == ["class_1 objects", "class_2 objects"]


def test_more_than_256_classes(tmp_path, folder):
    """Label maps are then PNGs of 16 bits. The classes are those of a wrapped dataset."""
    config, weights = str(tmp_path / "many.py"), tmp_path / "many.pth"
    Path(config).write_text(
        f"_base_ = {CONFIG!r}\n"
        "model = dict(decode_head=dict(num_classes=300))\n"
        "one = dict(type='CheckedDataset', data_root='nowhere', pipeline=_base_.test_pipeline,\n"
        "    metainfo=dict(classes=[str(i) for i in range(300)]))\n"
        "test_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset',\n"
        "    datasets=[one, one]))\n"
    )
    model = get_model(config)
    assert list(model.dataset_meta["classes"]) == [str(i) for i in range(300)]
    with torch.no_grad():
        model.decode_head.conv_seg.bias[299] = 1e4
    torch.save({"state_dict": model.state_dict()}, weights)
    words = [str(folder / "a.png"), config, str(weights), "--opacity", "1"]
    assert run("image_demo", [*words, "--out", str(tmp_path / "out")]) == 0
    labels = read(tmp_path / "out/labels/a.png")
    assert labels.dtype == np.uint16 and (labels == 299).all()
    overlay = read(tmp_path / "out/overlays/a.png")
    assert (overlay[:64, :64] == model.dataset_meta["palette"][299]).all()


def test_bad_arguments_are_one_line(folder, tmp_path, capsys):
    image = str(folder / "a.png")
    for words, message in (
        (["nowhere", CONFIG, "none"], "nowhere: no image there"),
        ([image, CONFIG], f"{CONFIG}: name a checkpoint"),
        ([image, CONFIG, "none", "--device", "cuda:99"], "device 'cuda:99' cannot be used"),
        ([image, CONFIG, "none", "--opacity", "1.5"], "--opacity=1.5: choose"),
        ([image, CONFIG, "none", "--opacity", "-1"], "--opacity=-1.0: choose"),
    ):
        assert run("image_demo", [*words, "--out", str(tmp_path / "out")]) == 1
        line = capsys.readouterr().err
        assert message in line and line.count("\n") == 1
