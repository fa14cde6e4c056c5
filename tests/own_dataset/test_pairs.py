"""Images and annotations are paired by what differs in their names, as public datasets have them.

Most files are empty, so the tests pair them instead of running a command, which would read them.
"""

import re
import shlex
from pathlib import Path

import pytest

from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.masks import ClassMasks, Masks
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.item import Item, keyed_files, usable
from mmseg_ext.own_dataset.pairs import list_items, pair
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


def find_pairs(images: Path, reader: Reader, data: Path) -> tuple[list[Item], list[str]]:
    """Return the items with an annotation, and a line for each file that is in none."""
    items = list_items(images, reader, data)
    lines = pair(items, reader)
    return usable(items), [item.problem for item in items if item.problem] + lines


def find(folder: Path, images: str, masks: str):
    """Return the names of the pairs, and of the files that are in none."""
    reader = Masks.find(folder / masks)
    pairs, left_out = find_pairs(folder / images, reader, folder / "project/data")
    found = {}
    for item in pairs:
        annotations = item.annotation.paths
        key = item.image.relative_to(folder / images.partition("*")[0])
        found[str(key)] = [
            str(p.relative_to(folder / masks.partition("*")[0])) for p in annotations
        ]
    return found, [Path(line.partition(": ")[0]).name for line in left_out]


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
    for item in pairs:
        assert item.annotation.path.parent.name == item.split + ending


@pytest.mark.parametrize("images", ["train/{}.jpg", "{}.jpg"])
@pytest.mark.parametrize("masks", ["train/{}.png", "{}.png"])
def test_the_folders_of_one_side_name_the_split(images, masks, tmp_path):
    write(tmp_path, ["x/" + images.format("a"), "y/" + masks.format("a")])
    pairs, _ = find_pairs(tmp_path / "x", Masks.find(tmp_path / "y"), tmp_path / "project/data")
    assert [item.split for item in pairs] == ["train" if "train" in images + masks else None]


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


CLASSES = {  # the paths of images and of masks of two classes, and those of the first as a flag
    "endings": ("x/{0}.jpg", "y/{0}_leaf.png", "y/{0}_red_fruit.png", "y/*_leaf.png"),
    "beginnings": (
        *("x/{0}.jpg", "y/leaf-{0}-mask.png", "y/red-fruit-{0}-mask.png"),
        "y/leaf-*-mask.png",
    ),
    "folders": ("x/{0}.jpg", "y/leaf/{0}.png", "y/red_fruit_masks/{0}.png", "y/leaf"),
    "folders of splits": (
        *("x/val/{0}.jpg", "y/val/leaf/{0}.png", "y/red fruit/val/{0}.png"),
        "y/*/leaf/*.png",
    ),
    "a folder each": (
        *("x/{0}/{0}_RAW.jpg", "x/{0}/{0}_leaf.png", "x/{0}/{0}_red_fruit.png"),
        "x/*_leaf.png",
    ),
    "objects": (
        *("x/{0}/a.jpg", "x/{0}/masks/leaf.png", "x/{0}/masks/red_fruit.png"),
        "x/*/leaf.png",
    ),
    "counted": ("x/{0}.jpg", "y/{0}_leaf_7.png", "y/{0}_red_fruit.png", "y/*_leaf*.png"),
}


@pytest.mark.parametrize("layout", CLASSES)
def test_masks_of_a_class_each(layout, tmp_path):
    """Their names only make an error, whose flags find them; not what a single image has."""
    image, leaf, fruit = (path.format for path in CLASSES[layout][:3])
    names = [f"plant_{i}" for i in range(9)]
    write(tmp_path, map(image, names))
    write(tmp_path, map(leaf, names))
    write(tmp_path, map(fruit, names[3:6]))
    write(tmp_path, [leaf(names[8]).replace("leaf", "tmp")])
    images, masks = (tmp_path / path("x").partition("/")[0] for path in (image, leaf))
    where = tmp_path / image(names[3])
    with raises_message(ValueError, tmp_path / leaf(names[3]), where=where) as caught:
        find_pairs(images, Masks.find(masks), tmp_path / "project")
    (flags,) = re.findall(r"--masks (\w+=.*?);", str(caught.value))
    sources = dict(text.split("=") for text in shlex.split(flags))
    assert sources.keys() == {"leaf", "red_fruit"}
    assert sources["leaf"] == str(tmp_path / CLASSES[layout][3])
    reader = ClassMasks.find({name: Path(source) for name, source in sources.items()})
    pairs, left_out = find_pairs(images, reader, tmp_path / "project")
    assert [item.image for item in pairs] == [tmp_path / image(name) for name in names]
    for name, item in zip(names, pairs, strict=True):
        own = {"leaf": tmp_path / leaf(name), "red_fruit": tmp_path / fruit(name)}
        own = [(k, path) for k, path in own.items() if path.is_file()]
        assert list(zip(item.annotation.classes, item.annotation.paths, strict=True)) == own
    assert not left_out


def test_numbers_are_no_classes(tmp_path):
    """A single image shows no pattern, and numbers can count objects or versions."""
    write(tmp_path, ["u/a.png", "v/a_class1.png", "v/a_class2.png", "x/a.png", "x/b.png"])
    write(tmp_path, [f"w/{name}_{i}.png" for name in "ab" for i in "12"])
    for images, masks in (("u", "v"), ("x", "w")):
        with pytest.raises(ValueError, match="no image fits"):
            find(tmp_path, images, masks)
    write(tmp_path, [f"y/{name}_class{i}.png" for name in "ab" for i in "12"])
    with raises_message(ValueError, where=tmp_path / "x/a.png", todo="class2") as caught:
        find(tmp_path, "x", "y")
    assert f"class1='{tmp_path}/y/*_class1.png'" in str(caught.value)


def test_masks_of_a_class_can_be_counted(tmp_path):
    """The second * of a pattern stands for the count; each class is paired on its own."""
    write(tmp_path, ["x/a_1.jpg", "x/a_2.jpg", "y/a_1_leaf_1.png", "y/a_1_leaf_2.png"])
    write(tmp_path, ["y/a_2_leaf_7.png", "y/a_2_stem.png"])
    sources = {"stem": tmp_path / "y/*_stem.png", "leaf": tmp_path / "y/*_leaf_*.png"}
    pairs, left_out = find_pairs(tmp_path / "x", ClassMasks.find(sources), tmp_path)
    assert [item.annotation.classes for item in pairs] == [("leaf", "leaf"), ("stem", "leaf")]
    assert not left_out


@pytest.mark.parametrize("masks", [".", "SegmentationClass"])
@pytest.mark.parametrize("images", [".", "JPEGImages", "images"])
def test_classes_and_objects_of_voc(images, masks, tmp_path):
    """Exports of CVAT also have this layout. The flag --objects reads the other folder."""
    photos = "JPEGImages" if images == "." else images
    for name in "12":
        write(tmp_path, [f"{photos}/{name}.jpg"])
        write(tmp_path, [f"Segmentation{kind}/{name}.png" for kind in ("Class", "Object")])
    for kind in ("Class", "Object"):
        reader = Masks.find(tmp_path / masks.replace("Class", kind))
        reader.objects = kind == "Object"
        pairs, left_out = find_pairs(tmp_path / images, reader, tmp_path / "p/data")
        found = {item.image.name: item.annotation.path.parent.name for item in pairs}
        assert found == dict.fromkeys(("1.jpg", "2.jpg"), f"Segmentation{kind}") and not left_out


def test_patterns_choose_files(tmp_path):
    """Cityscapes has three masks of each image; what * stands for is compared."""
    for name in ("1", "2"):
        write(tmp_path, [f"x/{name}_p.png", f"y/{name}_color2.png", f"y/{name}_ids2.png"])
    with raises_message(ValueError, tmp_path / "y/1_color2.png", 2, where=tmp_path, todo="--masks"):
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


def test_one_pattern_of_images_and_masks(tmp_path):
    """As one folder of both: the words of the names tell masks from images."""
    write(tmp_path, [f"x/{i}{end}.png" for i in range(3) for end in ("", "_mask")])
    found, left_out = find(tmp_path, "x/*.png", "x/*.png")
    assert found == {f"{i}.png": [f"{i}_mask.png"] for i in range(3)} and not left_out


PATTERNS = {  # the pattern, and the names of the files that it finds
    "x/?_m.png": {"1", "2"},
    "x/[12]*_m.png": {"1", "2", "10"},
    "x/[!1]*_m.png": {"2"},
    "[xy]/*_m.png": {"x/1", "x/2", "x/10", "y/3"},
    "x/1?_[a-m].png": {"0"},
    "z [1]": {"4_m"},
    "z [1]/*_m.png": {"4"},
    "z [1]/[45]*.png": {"4_m"},
    "x/**": {"1_m", "2_m", "10_m"},
    "x/**/?_m.png": {"1", "2"},
    "[xy]/**/*_m.png": {"x/1", "x/2", "x/10", "y/3"},
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_have_the_rules_of_glob(pattern, tmp_path):
    """A folder whose name has brackets is no pattern; ? and [...] belong to the name, too."""
    write(tmp_path, ["x/1_m.png", "x/2_m.png", "x/10_m.png", "y/3_m.png", "z [1]/4_m.png"])
    found = {key.name for key in keyed_files(tmp_path / pattern).values()}
    assert found == set(PATTERNS[pattern])


@pytest.mark.parametrize("images", ["*/images", "*/images/*.png", "."])
@pytest.mark.parametrize("masks", ["*/masks", "*/ma*", "1*/masks"])
def test_patterns_of_folders(images, masks, tmp_path):
    """These are all files in them, also deeper ones; not if the pattern fits a file."""
    for name in ("1", "2", "10"):
        write(tmp_path, [f"{name}/images/{name}.png", f"{name}/masks/a.png", f"{name}/masks/c.png"])
    reader = Masks.find(tmp_path / masks)
    reader.objects = True
    pairs, _ = find_pairs(tmp_path / images, reader, tmp_path / "project/data")
    names = ["1", "10", "2"] if masks[0] == "*" else ["1", "10"]
    assert [item.image.stem for item in pairs] == names
    for name, item in zip(names, pairs, strict=True):
        own = [tmp_path / name / path for path in ("masks/a.png", "masks/c.png")]
        assert [*item.annotation.paths] == own
    write(tmp_path, ["x/mark/1.png", "x/mark.png"])
    assert [*keyed_files(tmp_path / "x/mark*")] == [tmp_path / "x/mark.png"]
    write(tmp_path, ["y/mark/1/2.png"])
    assert [*keyed_files(tmp_path / "y/mark*")] == [tmp_path / "y/mark/1/2.png"]


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
    (both[1].parent / "2.png").unlink()
    reader = Masks.find(tmp_path / "vistas")
    pairs, left_out = find_pairs(tmp_path / "vistas", reader, tmp_path / "project/data")
    assert [item.image.name for item in pairs] == ["2.jpg", "3.jpg"]
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
