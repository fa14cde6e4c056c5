"""Images and annotations are paired by what differs in their names, as public datasets have them.

Most files are empty, so the tests pair them instead of running a command, which would read them.
"""

from pathlib import Path

import numpy as np
import pytest

from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.masks import Masks, ObjectMasks
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.pairs import Pair, find_sources, pair_sources
from tests.datasets.trees import save
from tests.messages import check_message, raises_message

CITY = "aachen/aachen_000000_000019", "aachen/aachen_000001_000019", "bochum/bochum_000000_000313"
SEQUENCES = "0001TP_006690", "0016E5_00390", "Seq05VD_f00000"
# The folders, the pattern of both files, their names, and files that belong to none.
LAYOUTS = {
    "field photos": ("images", "annotations", "{}_image.png", "{}_annotation.png", ["001", "002"]),
    "CamVid": ("raw", "labels", "{}.png", "{}_L.png", SEQUENCES),
    "CamVid in one folder": (".", ".", "{}.png", "{}_L.png", SEQUENCES),
    "ISIC": ("in", "out", "{}.jpg", "{}_segmentation.png", ["ISIC_0000000", "ISIC_0000001"]),
    "DeepGlobe": ("train", "train", "{}_sat.jpg", "{}_mask.png", ["100034", "997521"]),
    "Cityscapes": ("leftImg8bit", "gtFine", "{}_leftImg8bit.png", "{}_gtFine_labelIds.png", CITY),
    "Kvasir": ("images", "masks", "{}.jpg", "{}.jpg", ["cju0qkwl35piu0993l0dewei2", "cju1"]),
    "DRIVE": ("images", "1st_manual", "{}_training.tif", "{}_manual1.gif", ["21", "22", "31"]),
    "Supervisely": ("ds/img", "ds/masks_machine", "{}.jpeg", "{}.jpeg.png", ["IMG_1", "IMG_22"]),
    "one folder": (".", ".", "{}.jpg", "{}.png", ["cat", "car", "dog"]),
    "a folder each": (".", ".", "{}/img.png", "{}/label.png", ["one_json", "two_json"]),
    "a number twice": ("x", "y", "scene{}_0.jpg", "scene{}_1.png", [str(i) for i in range(12)]),
    "sites": ("x", "y", "{}_w1.tif", "{}_w2.png", [f"A{i}_s{i % 2}" for i in range(9)]),
    "years": (".", ".", "images_train2017/{}.jpg", "labels_train2017/{}.png", ["1", "2"]),
    "Keras": (".", ".", "image_{}.png", "mask_{}.png", ["0_61", "1_93"]),
    "two mask words": (".", ".", "seg_{}.png", "seg_{}_mask.png", ["1", "2"]),
    "VOC": (".", ".", "JPEGImages/{}.jpg", "SegmentationClass/{}.png", ["2007_000032", "2007_1"]),
    "kinds": (".", ".", "images_png/{}.png", "masks_png/{}.png", ["1", "2"]),
    "mmsegmentation": (".", ".", "img_dir/val/{}.png", "ann_dir/val/{}.png", ["1", "2"]),
    "CVAT": (".", ".", "default/{}.PNG", "defaultannot/{}.png", ["1", "2"]),
    "prepared": (".", ".", "images_prepped_train/{}.png", "labels_prepped_train/{}.png", "12"),
    "counted": ("photos", "labels", "photo{}.png", "truth{}.tif", ["001", "010", "100"]),
}


def write(folder: Path, names) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def find_pairs(images: Path, reader: Reader, data: Path) -> tuple[list[Pair], list[str]]:
    return pair_sources(find_sources(images, reader, data), reader)


def find(folder: Path, images: str, masks: str):
    """Return the names of the pairs, and of the files that are in none."""
    reader = Masks.find(folder / masks)
    pairs, left_out = find_pairs(folder / images, reader, folder / "project/data")
    found = {}
    for pair in pairs:
        annotations = pair.annotation.paths
        key = pair.image.relative_to(folder / images.partition("*")[0])
        found[str(key)] = [
            str(p.relative_to(folder / masks.partition("*")[0])) for p in annotations
        ]
    return found, [Path(line.partition(": ")[0]).name for line in left_out]


def classes(pair: Pair) -> list[tuple[str, Path]]:
    """Return the class and the path of each mask."""
    return list(zip(pair.annotation.classes, pair.annotation.paths, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_of_public_datasets(layout, tmp_path):
    images, masks, image, mask, names = LAYOUTS[layout]
    write(tmp_path / images, [image.format(name) for name in names])
    write(tmp_path / masks, [mask.format(name) for name in names])
    expected = {image.format(name): [mask.format(name)] for name in names}
    assert find(tmp_path, images, masks) == (expected, [])


def test_folders_with_annotations_of_their_own(tmp_path):
    """A name in another folder or split is another image; links lead to folders."""
    write(tmp_path, ["x/1/a.jpg", "x/1/b.jpg", "x/train/7.jpg", "y/1/a.png", "y/train/6.png"])
    write(tmp_path, ["y/2/b.png", "y/val/7.png", "elsewhere/c.jpg", "labels/c.png"])
    write(tmp_path, ["x/5/a.jpg", "x/d.jpg", "y/1/d.png", "y/2/d.png"])  # used; one of two
    for link, folder in (("x/3", "elsewhere"), ("x/1/up", "x"), ("y/3", "labels")):
        (tmp_path / link).symlink_to(tmp_path / folder)
    found, left_out = find(tmp_path, "x", "y")
    assert found == {"1/a.jpg": ["1/a.png"], "3/c.jpg": ["3/c.png"]}
    unused = ["6.png", "7.jpg", "7.png", "a.jpg", "b.jpg", "b.png", "d.jpg", "d.png", "d.png"]
    assert sorted(left_out) == unused


def test_a_split_with_one_image_is_no_folder_of_objects(tmp_path):
    write(tmp_path, ["x/train/img_1.jpg", "x/val/img_2.jpg"])
    write(tmp_path, ["y/train/lab_1.png", "y/train/lab_3.png", "y/val/lab_2.png"])
    found, left_out = find(tmp_path, "x", "y")
    assert found == {"train/img_1.jpg": ["train/lab_1.png"], "val/img_2.jpg": ["val/lab_2.png"]}
    assert left_out == ["lab_3.png"]


@pytest.mark.parametrize("ending", ["annot", "_masks", "-labels"])
def test_splits_in_the_names_of_folders(ending, tmp_path):
    """As in SegNet's CamVid; the same name is in both splits."""
    for split in ("train", "val"):
        write(tmp_path, [f"{split}/7.png", f"{split}/8.png"])
        write(tmp_path, [f"{split}{ending}/7.png", f"{split}{ending}/8.png"])
    pairs, left_out = find_pairs(tmp_path, Masks.find(tmp_path), tmp_path / "project/data")
    assert len(pairs) == 4 and not left_out
    for pair in pairs:
        assert pair.annotation.path.parent.name == pair.split + ending


@pytest.mark.parametrize("split", ["test", None])
def test_splits_are_words_of_folders(split, tmp_path):
    """Only next to a training set; else `test` is perhaps the name of a place."""
    folders = {"my_train-set": "train", "Test data": "test"} if split else {"Test site": None}
    for folder in folders:
        write(tmp_path, [f"{folder}/images/1.jpg", f"{folder}/masks/1.png"])
    pairs, _ = find_pairs(tmp_path, Masks.find(tmp_path), tmp_path / "project/data")
    assert {p.image.parent.parent.name: p.split for p in pairs} == folders


@pytest.mark.parametrize("image", ["{0}/images/{0}.png", "{0}/image.jpg"])
@pytest.mark.parametrize("counts", [(1, 1, 1, 2), (2, 2, 2, 2), (1, 2, 1, 2)])
def test_numbered_objects_of_images(image, counts, tmp_path):
    for i, count in enumerate(counts):
        write(tmp_path, [image.format(i), *(f"{i}/masks/mask_{j}.png" for j in range(count))])
    found, left_out = find(tmp_path, ".", ".")
    assert [len(masks) for masks in found.values()] == [*counts] and left_out == []


CLASSES = {  # the paths of images and of masks of two classes
    "endings": ("x/{0}.jpg", "y/{0}_leaf.png", "y/{0}_red_fruit.png"),
    "beginnings": ("x/{0}.jpg", "y/leaf-{0}-mask.png", "y/red-fruit-{0}-mask.png"),
    "folders": ("x/{0}.jpg", "y/leaf/{0}.png", "y/red_fruit_masks/{0}.png"),
    "folders of splits": ("x/val/{0}.jpg", "y/val/leaf/{0}.png", "y/red fruit/val/{0}.png"),
    "a folder each": ("x/{0}/{0}_RAW.jpg", "x/{0}/{0}_leaf.png", "x/{0}/{0}_red_fruit.png"),
    "objects": ("x/{0}/img.jpg", "x/{0}/masks/leaf.png", "x/{0}/masks/red_fruit_2.png"),
}


@pytest.mark.parametrize("layout", CLASSES)
def test_masks_of_a_class_each(layout, tmp_path):
    """What recurs is a class: `fruit` for few images, too, but not what one image has."""
    image, leaf, fruit = (path.format for path in CLASSES[layout])
    mask = np.zeros((3, 4), np.uint8)
    names = [f"plant_{i}" for i in range(9)]
    write(tmp_path, map(image, names))
    for name in names:
        save(tmp_path / leaf(name), mask)
    for name in names[3:6]:
        save(tmp_path / fruit(name), mask + 1)
    save(tmp_path / leaf(names[8]).replace("leaf", "tmp"), mask)
    where = tmp_path / image("x").partition("/")[0], tmp_path / leaf("x").partition("/")[0]
    pairs, left_out = find_pairs(where[0], Masks.find(where[1]), tmp_path / "project")
    assert [pair.image for pair in pairs] == [tmp_path / image(name) for name in names]
    for name, pair in zip(names, pairs, strict=True):
        own = {"leaf": tmp_path / leaf(name), "red_fruit": tmp_path / fruit(name)}
        assert classes(pair) == [(k, path) for k, path in own.items() if path.is_file()]
    assert len(left_out) == 1 and "tmp" in left_out[0]


def test_numbered_classes(tmp_path):
    """A single image shows no pattern, and numbers alone can count objects."""
    write(tmp_path, ["u/a.png", "v/a_class1.png", "v/a_class2.png", "x/a.png", "x/b.png"])
    write(tmp_path, [f"w/{name}_{i}.png" for name in "ab" for i in "12"])
    for images, masks in (("u", "v"), ("x", "w")):
        with pytest.raises(ValueError, match="no image fits"):
            find(tmp_path, images, masks)
    for name in ("a_class1", "a_class2", "b_class1", "b_class2"):
        save(tmp_path / f"y/{name}.png", np.zeros((3, 4), np.uint8))
    pairs, left_out = find_pairs(tmp_path / "x", Masks.find(tmp_path / "y"), tmp_path)
    assert not left_out
    assert classes(pairs[1]) == [(f"class{i}", tmp_path / f"y/b_class{i}.png") for i in (1, 2)]


NUMBERED = {  # the endings of the masks of each image, and the class of each
    "attached": ([["grade3", "grade4", "grade5"]] * 3, str),
    "of a letter": ([["L1", "L2"]] * 3, str),
    "of a letter, some absent": ([["L1", "L2", "L3"], ["L1", "L2"], ["L2", "L3"]], str),
    "separate, equal": ([["grade_3", "grade_4"]] * 3, str),
    "separate, different": ([["leaf_3", "leaf_5"], ["leaf_4", "leaf_5"]], lambda _: "leaf"),
    "counted": (
        [["leaf_1", "leaf_2"], ["leaf_1"], ["leaf_1", "leaf_2", "leaf_3"]],
        lambda _: "leaf",
    ),
    "second": ([["leaf", "leaf_2"], ["leaf"], ["leaf", "leaf_2", "leaf_3"]], lambda _: "leaf"),
    "through": ([["leaf_1", "leaf_2"], ["leaf_3"], ["leaf_4", "leaf_5"]], lambda _: "leaf"),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbers_of_classes_and_of_masks(case, tmp_path):
    """Digits of a word are its own; separate ones count if they differ between images."""
    endings, class_of = NUMBERED[case]
    mask = np.zeros((3, 4), np.uint8)
    for i, own in enumerate(endings):
        write(tmp_path, [f"x/img_{i}.jpg"])
        for ending in [*own, "stem"]:
            save(tmp_path / f"y/img_{i}_{ending}.png", mask)
    pairs, left_out = find_pairs(tmp_path / "x", Masks.find(tmp_path / "y"), tmp_path)
    assert not left_out
    for pair, own in zip(pairs, endings, strict=True):
        expected = {f"{pair.image.stem}_{name}.png": class_of(name) for name in own}
        expected[f"{pair.image.stem}_stem.png"] = "stem"
        assert {path.name: name for name, path in classes(pair)} == expected


def test_masks_of_several_classes_are_not_of_one(tmp_path):
    """As Cityscapes has several label maps of an image; the message says what is wrong."""
    label = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write(tmp_path, ["x/1.jpg", "x/2.jpg"])
    for name in "12":
        save(tmp_path / f"y/{name}_ids.png", label)
        save(tmp_path / f"y/{name}_train.png", label // 11)
    with pytest.raises(ValueError, match=r"no image fits.*_ids\.png: .* has 11 values other"):
        find(tmp_path, "x", "y")


@pytest.mark.parametrize("masks", [".", "SegmentationClass"])
@pytest.mark.parametrize("images", [".", "JPEGImages", "images"])
def test_classes_and_objects_of_voc(images, masks, tmp_path):
    """Exports of CVAT also have this layout. The flag --objects reads the other folder."""
    photos = "JPEGImages" if images == "." else images
    for name in "12":
        write(tmp_path, [f"{photos}/{name}.jpg"])
        write(tmp_path, [f"Segmentation{kind}/{name}.png" for kind in ("Class", "Object")])
    for kind, reader in (("Class", Masks), ("Object", ObjectMasks)):
        folder = tmp_path / masks.replace("Class", kind)
        pairs, left_out = find_pairs(tmp_path / images, reader.find(folder), tmp_path / "p/data")
        found = {pair.image.name: pair.annotation.path.parent.name for pair in pairs}
        assert found == dict.fromkeys(("1.jpg", "2.jpg"), f"Segmentation{kind}") and not left_out


def test_patterns_choose_files(tmp_path):
    """Cityscapes has three masks of each image; what * stands for is compared."""
    for name in ("1", "2"):
        write(tmp_path, [f"x/{name}_p.png", f"y/{name}_color2.png", f"y/{name}_ids2.png"])
    with pytest.raises(ValueError, match=r"1_p\.png with .*1_color2\.png.*--masks"):
        find(tmp_path, "x", "y")
    expected = {"1_p.png": ["1_ids2.png"], "2_p.png": ["2_ids2.png"]}
    assert find(tmp_path, "x/*_p.png", "y/*_ids2.png") == (expected, [])


@pytest.mark.parametrize("pattern", ["*_CRACK.png", "*/*_CRACK.png"])
def test_patterns_with_folders(pattern, tmp_path):
    """Subfolders count, and images need no pattern if they differ from all masks in their kind."""
    kinds = ("RAW.jpg", "CRACK.png", "LANE.png")
    write(tmp_path, [f"d/{i}/{i}_{kind}" for i in (10, 11, 12) for kind in kinds])
    expected = {f"{i}/{i}_RAW.jpg": [f"{i}/{i}_CRACK.png"] for i in (10, 11, 12)}
    assert find(tmp_path, "d", f"d/{pattern}") == (expected, [])


def test_what_is_not_certain_is_left_out(tmp_path):
    """Two masks of an image, and a mask of two images."""
    write(tmp_path, ["x/a.png", "x/b.png", "x/1/c.png", "x/2/c.png"])
    write(tmp_path, ["y/a_mask.png", "y/a_label.png", "y/b.png", "y/c.png"])
    found, left_out = find(tmp_path, "x", "y")
    assert found == {"b.png": ["b.png"]}
    assert sorted(left_out) == ["a.png", "a_label.png", "a_mask.png", "c.png", "c.png", "c.png"]
    write(tmp_path, ["u/cat.png", "u/dog.png", "v/bird.png", "v/cow.png"])
    with pytest.raises(ValueError, match=r"cat\.png with .*bird\.png"):
        find(tmp_path, "u", "v")


def test_annotations_with_one_name_are_listed(tmp_path):
    """As of Mapillary, whose versions have folders; also if other images have a pair."""
    write(tmp_path / "vistas/images", ["1.jpg", "2.jpg"])
    for folder in ("v1/labels", "v2/labels"):
        write(tmp_path / "vistas" / folder, ["1.png", "2.png"])
    both = [tmp_path / f"vistas/{kind}/1.png" for kind in ("v1/labels", "v2/labels")]
    with raises_message(ValueError, *both, 2, where=tmp_path / "vistas", todo="folder"):
        find(tmp_path, "vistas", "vistas")
    write(tmp_path, ["vistas/images/3.jpg", "vistas/v1/labels/3.png"])
    reader = Masks.find(tmp_path / "vistas")
    pairs, left_out = find_pairs(tmp_path / "vistas", reader, tmp_path / "project/data")
    assert [pair.image.name for pair in pairs] == ["3.jpg"]
    check_message(left_out[0], *both, where=tmp_path / "vistas/images/1.jpg", todo="folder")


def test_files_that_are_not_told_apart(tmp_path):
    """A pattern chooses some of the PNGs of a folder; without one, all could be masks."""
    write(tmp_path, ["a/1_photo.png", "a/2_photo.png", "b/1_truth.png", "b/2_truth.png"])
    with raises_message(ValueError, "images and masks", where=tmp_path, todo="folders"):
        find(tmp_path, ".", ".")
    found, left_out = find(tmp_path, ".", "b/*_truth.png")
    assert found == {"a/1_photo.png": ["1_truth.png"], "a/2_photo.png": ["2_truth.png"]}
    assert not left_out
    with raises_message(ValueError, "file", where=tmp_path / "a/1_photo.png", todo="folder"):
        find(tmp_path, "a", "a/1_photo.png")


def test_numbers_with_and_without_zeros(tmp_path):
    """001 is image 1, unless there is another name with this number."""
    write(tmp_path, [f"x/img_{number}.jpg" for number in ("1", "10", "2", "02")])
    write(tmp_path, [f"y/{number}.png" for number in ("001", "010", "002")])
    found, left_out = find(tmp_path, "x", "y")
    assert found == {"img_1.jpg": ["001.png"], "img_10.jpg": ["010.png"]}
    assert left_out == ["img_02.jpg", "img_2.jpg", "002.png"]


def test_files_that_fit_nothing_change_no_pair(tmp_path):
    write(tmp_path, ["x/legend.png", *(f"x/photo{i}.jpg" for i in range(5))])
    write(tmp_path, ["y/colors.png", *(f"y/photo{i}_mask.png" for i in range(4))])
    found, left_out = find(tmp_path, "x", "y")
    assert found == {f"photo{i}.jpg": [f"photo{i}_mask.png"] for i in range(4)}
    assert left_out == ["legend.png", "photo4.jpg", "colors.png"]


def test_annotations_in_json_files(tmp_path):
    """Supervisely and others keep the image's suffix."""
    write(tmp_path, ["img/a.jpg", "img/b.jpg", "ann/a.jpg.json", "ann/b.json"])
    reader = Labelme.find(tmp_path / "ann")
    pairs, left_out = find_pairs(tmp_path / "img", reader, tmp_path / "project")
    assert len(pairs) == 2 and not left_out
