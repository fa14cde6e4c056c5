"""Names that differ for a program and not for a person, and what other programs write in files."""

import json
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.own_dataset.annotations.coco import Coco
from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.masks import Masks
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.annotations.yolo import Yolo
from mmseg_ext.own_dataset.groups import find_groups
from mmseg_ext.own_dataset.item import usable
from mmseg_ext.own_dataset.pairs import list_items, pair
from mmseg_ext.own_dataset.project import Project, make_project
from mmseg_ext.own_dataset.splits import SplitRule
from tests.datasets.trees import random_image, save
from tests.messages import check_message, raises_message

SIZE = (40, 30)  # width, height
SQUARE = [10, 5, 30, 5, 30, 25, 10, 25]


def save_photos(folder: Path, *names: str) -> None:
    for i, name in enumerate(names):
        save(folder / "images" / name, random_image(np.random.RandomState(i), SIZE))


def write_coco(path: Path, names, categories=((1, "thing"),), **more) -> Path:
    """Write a COCO file with a square of each category in each image."""
    images, objects = [], []
    for i, name in enumerate(names):
        images.append(dict(id=i, file_name=name, width=SIZE[0], height=SIZE[1]))
        for place, (number, _) in enumerate(categories):
            square = [length + place for length in SQUARE]  # none covers another one
            objects.append(dict(image_id=i, category_id=number, segmentation=[square]))
    categories = [dict(id=number, name=name) for number, name in categories]
    content = dict(images=images, annotations=objects, categories=categories) | more
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def make(folder: Path, reader: Reader, **rule) -> Project:
    return make_project(folder / "p", folder / "images", reader, SplitRule(0.5, **rule))


def change(form: str, name: str) -> str:
    changes = {"NFC": "NFC", "NFD": "NFD", "upper": ""}
    return unicodedata.normalize(changes[form], name) if changes[form] else name.upper()


FORMS = [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "upper"), ("upper", "NFD")]


@pytest.mark.parametrize(("of_photo", "of_file"), FORMS)
def test_a_photo_fits_its_name_in_another_form(of_photo, of_file, tmp_path):
    """In COCO's files, too, whose names are complete; nothing becomes background."""
    names = [f"gebäude_{i}.jpg" for i in range(4)]
    save_photos(tmp_path, *(change(of_photo, name) for name in names))
    path = write_coco(tmp_path / "a.json", [change(of_file, name) for name in names])
    for is_background in (False, True):
        reader = Coco.find([path])
        reader.missing_is_background = is_background
        made = make(tmp_path, reader)
        assert len(usable(made.items)) == 4 and made.splits[0].pixels[1] > 0
        assert not any(item.annotation.is_missing for item in made.items)


@pytest.mark.parametrize("kind", ["masks", "coco"])
def test_case_counts_where_two_names_differ_only_in_it(kind, tmp_path):
    save_photos(tmp_path, "a_1.jpg", "A_1.jpg", "b_1.jpg")
    names = ["a_1", "A_1", "B_1"]
    for name in names:
        save(tmp_path / f"masks/{name}.png", np.zeros(SIZE[::-1], np.uint8))
    reader = Masks.find(tmp_path / "masks")
    if kind == "coco":
        reader = Coco.find([write_coco(tmp_path / "c.json", [f"{name}.jpg" for name in names])])
    items = list_items(tmp_path / "images", reader, tmp_path / "p/data")
    assert not pair(items, reader)
    found = {item.image.stem: item.annotation.key.name for item in items}
    assert found == {"a_1": "a_1", "A_1": "A_1", "b_1": "B_1"}


@pytest.mark.parametrize("kind", ["coco", "labelme", "yolo"])
def test_objects_without_a_photo_are_not_lost_beside_background(kind, tmp_path):
    """A renamed photo would become background; an annotation without objects loses nothing."""
    save_photos(tmp_path, "a.jpg", "b.jpg", "new.jpg")
    for name, has_objects in (("a", True), ("b", True), ("old", True), ("none", False)):
        objects = [SQUARE] * has_objects
        shapes = [dict(label="x", points=np.reshape(s, (-1, 2)).tolist()) for s in objects]
        lines = [" ".join(map(str, [0, *(np.array(s) / 40).tolist()])) for s in objects]
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / f"files/{name}.json").write_text(json.dumps(dict(shapes=shapes)))
        (tmp_path / f"files/{name}.txt").write_text("\n".join(lines))
    path = write_coco(tmp_path / "a.json", ["a.jpg", "b.jpg", "old.jpg", "none.jpg"])
    content = json.loads(path.read_text())
    del content["annotations"][-1]
    path.write_text(json.dumps(content))

    def find() -> Reader:
        if kind == "coco":
            return Coco.find([path])
        return {"labelme": Labelme, "yolo": Yolo}[kind].find(tmp_path / "files")

    assert [item.image.stem for item in usable(make(tmp_path, find()).items)] == ["a", "b"]
    reader = find()
    reader.missing_is_background = True
    where = tmp_path / "images/new.jpg"
    with raises_message(ValueError, "background", where=where, todo="rename") as caught:
        make(tmp_path, reader)
    assert "old" in str(caught.value)
    (tmp_path / "images/new.jpg").rename(tmp_path / "images/OLD.jpg")
    save_photos(tmp_path, "a.jpg", "b.jpg", "new.jpg")
    reader = find()
    reader.missing_is_background = True
    items = make(tmp_path, reader).items
    assert [item.image.stem for item in items if item.annotation.is_missing] == ["new"]


def test_equal_and_similar_names_of_classes_are_a_line(tmp_path):
    """Equal ones are one class, others stay two; outer spaces, which nobody sees, do not count."""
    save_photos(tmp_path, "a.jpg", "b.jpg")
    names = [(1, "door"), (2, "door "), (3, "cat"), (4, "Cat"), (7, "c at")]
    path = write_coco(tmp_path / "a.json", ["a.jpg", "b.jpg"], names)
    made = make(tmp_path, Coco.find([path]))
    assert made.classes.names == ["background", "door", "cat", "Cat", "c at"]
    notes = list(map(str, made.notes))
    (equal,) = [note for note in notes if note.startswith(str(path))]
    check_message(equal, 1, 2, "door", where=path)
    (similar,) = [note for note in notes if "'Cat'" in note]
    check_message(similar, "'cat'", todo="classes.csv")
    for name in "ab":
        shares = (np.array(SQUARE) / 40).tolist()
        lines = [" ".join(map(str, [number, *shares])) for number in (0, 1)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    (tmp_path / "data.yaml").write_text("names: [door, door]")
    reader = Yolo.find(tmp_path)
    assert any("0, 1" in note and "door" in note for note in reader.notes)
    assert reader.names == ["door"]
    (tmp_path / "a.yml").write_text("- hostnames: [x]")  # of another tool
    (tmp_path / "b.yml").write_text("hostnames: [x]")
    (tmp_path / "data.yaml").unlink()
    for text, names in (("door", ["door"]), ("{'10': b, '9': door}", ["door", "b"])):
        (tmp_path / "c.yaml").write_text(f"names: {text}")
        assert Yolo.find(tmp_path).names == names


@pytest.mark.parametrize("name", ["cat ", "a;b;c;d;e;f;g;h;i", 'a, "b"', "# a", "#b", "text"])
def test_names_survive_the_file_of_the_classes(name, tmp_path):
    """A further run finds the classes of the first one, whatever characters their names have."""
    save_photos(tmp_path, "a.jpg", "b.jpg")
    path = write_coco(tmp_path / "a.json", ["a.jpg", "b.jpg"], [(1, name), (2, "dog")])
    for _ in range(2):
        made = make(tmp_path, Coco.find([path]))
        assert made.classes.names == ["background", name.strip(), "dog"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_texts_as_windows_writes_them(encoding, tmp_path):
    """Names of classes, the file of the classes, and lists and splits of photos."""
    save_photos(tmp_path, "ä.jpg", "b.jpg", "c.jpg")
    for name in "äbc":
        save(tmp_path / f"masks/{name}.png", np.eye(30, 40, dtype=np.uint8))
    (tmp_path / "masks/classes.txt").write_text("ö\nü\n", encoding)
    lists = {"train": tmp_path / "train.txt", "val": tmp_path / "val.txt"}
    lists["train"].write_text("ä\nb\n", encoding)
    lists["val"].write_text("c\n", encoding)
    for _ in range(2):
        made = make(tmp_path, Masks.find(tmp_path / "masks"), lists=lists)
        assert made.classes.names == ["ö", "ü"] and len(made.splits[0].items) == 2
        for file in (tmp_path / "p/data/classes.csv", tmp_path / "p/data/splits.json"):
            file.write_text(file.read_text("utf-8-sig"), encoding)


def test_shares_that_a_further_run_does_not_choose_are_a_note(tmp_path):
    names = [f"{letter}.jpg" for letter in "abcdefgh"]
    save_photos(tmp_path, *names)
    path = write_coco(tmp_path / "a.json", names)
    for rule, noted in (((0.5,), ""), ((0.5,), ""), ((0.1, 0.2), "val test")):
        images, reader = tmp_path / "images", Coco.find([path])
        made = make_project(tmp_path / "p", images, reader, SplitRule(*rule))
        notes = [str(note) for note in made.notes if "splits.json" in str(note)]
        assert sorted(note.split()[0] for note in notes) == sorted(noted.split())


@pytest.mark.parametrize("text", ['{"a": "train",}', '["a"]', "3", '{"a": "trian"}'])
def test_an_edit_of_the_splits_that_is_none_is_one_line(text, tmp_path):
    save_photos(tmp_path, "a.jpg", "b.jpg")
    path = write_coco(tmp_path / "a.json", ["a.jpg", "b.jpg"])
    make(tmp_path, Coco.find([path]))
    file = tmp_path / "p/data/splits.json"
    file.write_text(text)
    with raises_message(ValueError, where=file, todo=True):
        make(tmp_path, Coco.find([path]))


def test_roboflows_category_of_all_others_is_no_class(tmp_path):
    """It has no objects. Another category 0, or without others below it, is a class."""
    for above, has_objects in (("cells", False), ("cells", True), ("none", False)):
        path = write_coco(tmp_path / "a.json", ["a.jpg"], [(0, "cells"), (1, "red")])
        content = json.loads(path.read_text())
        content["categories"][1]["supercategory"] = above
        content["annotations"] = content["annotations"][0 if has_objects else 1 :]
        path.write_text(json.dumps(content))
        is_class = has_objects or above == "none"
        assert Coco.find([path]).names == ["cells"] * is_class + ["red"]


def test_folders_of_coco_files(tmp_path):
    """As Roboflow's, with a file for each split; the same name is in both."""
    for split in ("train", "valid"):
        save_photos(tmp_path, f"{split}/a.jpg", f"{split}/b.jpg")
        write_coco(tmp_path / f"images/{split}/_annotations.coco.json", ["a.jpg", "b.jpg"])
    made = make(tmp_path, Coco.find([tmp_path / "images"]))
    assert {(item.split, item.name) for item in usable(made.items)} == {
        *(("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")),
    }
    (tmp_path / "empty").mkdir()
    with raises_message(ValueError, "JSON", where=tmp_path / "empty", todo=True):
        Coco.find([tmp_path / "empty"])


def test_labels_that_number_objects_are_a_hint(tmp_path):
    """With the file in which they become one class, and the flag with which names do not matter."""
    save_photos(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    shapes = [dict(label=f"yolk{i}", points=[[i, 0], [i + 1, 0], [i, 9]]) for i in range(1, 22)]
    shapes.append(dict(label="__ignore__", points=[[0, 20], [40, 20], [40, 30], [0, 30]]))
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(dict(shapes=shapes)))
    made = make(tmp_path, Labelme.find(tmp_path))
    (note,) = [str(note) for note in made.notes if "yolk1" in str(note)]
    check_message(note, "yolk10", "--objects", todo="classes.csv")
    shutil.rmtree(tmp_path / "p")
    reader = Labelme.find(tmp_path)
    reader.objects = reader.missing_is_background = True
    made = make(tmp_path, reader)
    assert made.classes.names == ["background", "object", "border"]
    assert not [note for note in made.notes if "yolk" in str(note)]
    labels = {}
    for item in made.items:
        labels[item.image.stem] = np.array(Image.open(item.sample["seg_map_path"]))
    assert not labels["c"].any()  # without an annotation
    assert (labels["a"][20:] == 255).all() and set(np.unique(labels["a"][:20])) == {0, 2}


def test_names_in_lists_and_groups_in_another_form(tmp_path):
    names = [f"{place}_{i}" for place in ("straße", "gebäude") for i in range(3)]
    save_photos(tmp_path, *(f"{change('NFD', name)}.png" for name in names))
    for name in names:
        save(tmp_path / f"masks/{name}.png", np.eye(30, 40, dtype=np.uint8))
    lists = {}
    for split, own in (("train", names[:3]), ("val", names[3:])):
        lists[split] = tmp_path / f"{split}.txt"
        lists[split].write_text("\n".join(name.upper() if split == "val" else name for name in own))
    made = make(tmp_path, Masks.find(tmp_path / "masks"), lists=lists)
    assert [len(split.items) for split in made.splits] == [3, 3]
    names = [change("NFD", name) for name in names]
    assert list(find_groups(names, "Geb\u00e4*e_")) == [(3, [3, 4, 5])]


def test_a_project_keeps_its_split_and_flags_in_another_form(tmp_path):
    """As after a copy to another system. --classes and --ignore find labels in any case."""
    save_photos(tmp_path, *(f"gebäude_{i}.jpg" for i in range(6)))
    categories = [(1, "straße"), (2, "Tür"), (3, "dach")]
    path = write_coco(tmp_path / "a.json", [f"gebäude_{i}.jpg" for i in range(6)], categories)
    names = [change("NFD", name) for name in ("background", "tür", "Straße")]
    flags = Coco.find([path]), SplitRule(0.5), names, ["DACH"]
    made = make_project(tmp_path / "p", tmp_path / "images", *flags)
    assert made.classes.names == ["background", "tür", "Straße"]
    assert made.classes.numbers == {"background": 0, "Tür": 1, "straße": 2, "dach": 255}
    before = {item.name: item.split for item in made.items}
    file = tmp_path / "p/data/splits.json"
    splits = json.loads(file.read_text())
    other = {"train": "val", "val": "train"}
    swapped = {change("NFD", name): other.get(split, split) for name, split in splits.items()}
    file.write_text(json.dumps(swapped))
    made = make(tmp_path, Coco.find([path]))
    assert {item.name: other[item.split] for item in made.items} == before
