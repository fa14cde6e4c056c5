"""`check_dataset` on small trees of four layouts, clean and broken."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmseg_ext import commands

# The command prints rounded shares; splits of many images are made without the images.
from mmseg_ext.own_dataset.check import check_dataset
from mmseg_ext.own_dataset.item import Item, Key, Notes
from mmseg_ext.own_dataset.summary import Split, add_notes_on_pixels, print_splits
from tests.datasets.trees import BASES, SIZE, Tree, make_tree, random_label, save
from tests.messages import check_message

SHAPE = SIZE[::-1]


def run(tree: Tree, *flags: str, text: str = "") -> int:
    return commands.run("check_dataset", [str(tree.write_config(text)), "--workers", "0", *flags])


@pytest.mark.parametrize("layout", BASES)
def test_clean(layout, tmp_path, capsys):
    """No problem, status 0, and the counts of the label maps."""
    tree = make_tree(layout, tmp_path)
    assert run(tree) == 0
    assert capsys.readouterr().err == ""
    _, (found, val), _ = check_dataset(tree.config())
    assert val.name == "val"  # the test set is the same
    train = [pair for split in ("train", "aug") for pair in tree.pairs.get(split, ())]
    assert found.name == "train" and len(found.items) == len(train)
    assert found.sizes == {SIZE: len(train)}
    labels = np.stack([np.array(Image.open(mask)) for _, mask in train])  # (N, H, W)
    offset = 1 if layout == "ade20k" else 0
    for i in range(len(found.classes)):
        assert found.pixels[i] == (labels == i + offset).sum()
        assert found.images[i] == (labels == i + offset).any(axis=(1, 2)).sum()
    assert found.ignored == labels.size - found.pixels.sum()
    assert found.ignored == (labels == {"ade20k": 0, "camvid": 11}.get(layout, 255)).sum()


def rewrite(path, value):
    """Write a label map of class 1 with three pixels of `value`."""
    label = np.ones(SHAPE, np.uint8)
    label[0, :3] = value
    save(path, label)


def blank(tree: Tree) -> None:
    save(tree.mask(), np.full(SHAPE, 255, np.uint8))


def write_one_class(tree: Tree) -> None:
    for _, mask in tree.pairs["val"]:
        save(mask, random_label(np.random.RandomState(1), [0, 255]))


def share_image(tree: Tree) -> None:
    shutil.copy(tree.image("train"), tree.image("val"))


@pytest.mark.parametrize(
    ("layout", "kind", "damage", "message"),
    [
        ("cityscapes", "label", blank, "labelTrainIds.png: every pixel is ignored"),
        ("voc", "one-class", write_one_class, "all pixels are ignored or of class 0"),
        ("camvid", "shared-image", share_image, "val0.png: is the same image as .*/train0.png"),
    ],
)
def test_broken(layout, kind, damage, message, tmp_path, capsys):
    """Exactly one line, with kind, file and values, and exit status 1."""
    tree = make_tree(layout, tmp_path)
    damage(tree)
    assert run(tree) == 1
    output = capsys.readouterr().out
    (line,) = re.findall(r"^(?:train|val|test): (?!note)[a-z-]+: .*$", output, re.M)
    assert re.search(f": {kind}: .*{message}", line), line
    assert f"1 {kind}" in output.splitlines()[-1]


def test_processes_find_what_one_process_finds(tmp_path):
    """Several problems at once, in the order of the splits and their files."""
    tree = make_tree("ade20k", tmp_path)
    rewrite(tree.mask("train", 0), 151)
    tree.image("train", 1).write_bytes(b"")
    tree.mask("val", 1).unlink()
    problems, splits, _ = check_dataset(tree.config(), workers=2)
    kinds = [("train", "label"), ("train", "unreadable"), ("val", "unreadable")]
    assert [(p.split, p.kind) for p in problems] == kinds
    again, others, _ = check_dataset(tree.config())
    assert again == problems
    for ours, theirs in zip(splits, others, strict=True):
        assert np.array_equal(ours.pixels, theirs.pixels)
        for own, other in zip(ours.items, theirs.items, strict=True):
            assert own.image == other.image and np.array_equal(own.small, other.small)


def test_images_may_be_shared_on_purpose(tmp_path):
    tree = make_tree("camvid", tmp_path)
    share_image(tree)
    assert run(tree, text="allow_overlap = True") == 0
    assert run(tree, "--split", "val") == 0
    cfg = tree.config()
    cfg.val_dataloader.dataset = cfg.train_dataloader.dataset
    assert [p.kind for p in check_dataset(cfg, ["train", "val"])[0]] == ["shared-image"] * 3


def test_a_part_of_a_dataset_is_a_note(tmp_path):
    """The number of files counts, also of those that are damaged."""
    tree = make_tree("ade20k", tmp_path)
    tree.image("train", 1).write_bytes(b"")
    first = str(next(iter(check_dataset(tree.config()).notes)))
    check_message(
        first,
        f"train has {len(tree.pairs['train'])} of 20,210 images",
        where="train_dataloader: ",
        todo="docs/data.md",
    )


def test_subset_of_classes(tmp_path, capsys):
    """Classes that are left out are ignored; a value that was never a class is not."""
    tree = make_tree("camvid", tmp_path)
    cfg = tree.config()
    for split in ("train", "val"):
        cfg[f"{split}_dataloader"].dataset.metainfo = dict(classes=["road", "car", "sky"])
    problems, (found, _), _ = check_dataset(cfg, ["train", "val"])
    labels = np.stack([np.array(Image.open(mask)) for _, mask in tree.pairs["train"]])
    assert not problems and found.classes == ("road", "car", "sky")
    assert found.pixels.tolist() == [int((labels == old).sum()) for old in (3, 8, 0)]
    rewrite(tree.mask(), 12)
    ((_, kind, message),) = check_dataset(cfg, ["train"])[0]
    assert kind == "label" and "12 (3 pixels); expected 0 to 11, or 255" in message


def test_stock_loaders_are_checked_as_they_read(tmp_path):
    """OpenCV reads a palette as colors; mmcv rotates the image but not the label map."""
    tree = make_tree("voc", tmp_path)
    cfg = tree.config()
    stock = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations", imdecode_backend="cv2")]
    cfg.val_dataloader.dataset.pipeline = stock
    problems, _, _ = check_dataset(cfg, ["val"])
    assert len(problems) == 3 and all("imdecode_backend='pillow'" in p.message for p in problems)
    cfg.val_dataloader.dataset.update(type="PascalVOCDataset", pipeline=stock[:1])
    stock[1].pop("imdecode_backend")
    assert check_dataset(cfg, ["val"])[0] == []
    cfg.val_dataloader.dataset.pipeline = stock
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.open(tree.image("val")).save(tree.image("val"), exif=exif)
    ((_, kind, message),) = check_dataset(cfg, ["val"])[0]
    assert kind == "label" and message.startswith(f"{tree.image('val')}: mmcv rotates")
    cfg.val_dataloader.dataset.type = "CheckedPascalVOCDataset"
    assert check_dataset(cfg, ["val"])[0] == []


def split_of(name: str, classes: tuple[str, ...], *items: tuple) -> Split:
    """Return a split of items, given by their sizes and their pixels of each class and ignored."""
    found = []
    for i, (size, counts) in enumerate(items):
        path = Path(f"{i}.png")
        found.append(Item(path, Key(None, f"{i}"), size=size[::-1], counts=np.array(counts)))
    return Split(name, classes, found)


def test_summaries(capsys):
    """The most frequent sizes, and the pixels of each class."""
    classes, items = ("[a] $x", "b"), []
    for i in range(1, 11):
        items += [((i, 9), [15, 0, 5])] * (20 - i)
    print_splits([split_of("train", classes, *items), split_of("test", classes)])
    output = capsys.readouterr().out
    sizes = ", ".join(f"{i}x9 ({20 - i})" for i in range(1, 9)) + ", 2 more"
    assert f"train: 145 pairs, {sizes}, 25.00% of the pixels ignored" in output
    assert rows(output) == [
        ["0", "[a] $x", "2,175", "75.00%", "145", "0", "0.00%", "0"],
        ["1", "b", "0", "0.00%", "0", "0", "0.00%", "0"],
    ]


def rows(output: str) -> list[list[str]]:
    """Return the cells of the table."""
    lines = [line.split("│")[1:-1] for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line] for line in lines]


@pytest.mark.parametrize("count", [20, 21, 150])
def test_tables_of_classes_are_short(count, capsys):
    print_splits([split_of("train", tuple(map(str, range(count))), ((9, 9), [1] * count))])
    output = capsys.readouterr().out
    assert len(rows(output)) == 20
    assert (f"{count - 20} more classes" in output) == (count > 20)


def test_notes_on_classes():
    """Classes without pixels, with few, or in one image of the training set; at most eight."""
    names = tuple(f"class {i}" for i in range(150))
    rest = [0] * 147
    train = [((9, 9), [10**7, 10**6, 40, *rest]), *[((9, 9), [10**6, 0, 40, *rest])] * 10]
    train = split_of("train", names, *train)
    val = split_of("val", names, ((9, 9), [3, 3, 3, *rest]))
    empty, notes = split_of("test", names), Notes()
    add_notes_on_pixels([train, val, empty], notes, {"0": 0, "#00ff00": 1, "40": 2, "255": 255})
    lines = list(map(str, notes))
    assert lines[0].endswith("no pixel of " + ", ".join(names[3:11]) + ", 139 more")
    assert lines[1].startswith("val: no pixel")
    assert lines[2].endswith("class 1 has only 1,000,000 pixels in images: 1")
    assert "40 in data/classes.csv" in lines[3] and len(lines) == 4
    slip = [0] * 146  # in a mask of val
    val, notes = split_of("val", names, *[((9, 9), [10**6, 3, 3, 84, *slip])] * 2), Notes()
    add_notes_on_pixels([train, val, empty], notes, {"0": 0, "32": 3})
    note = str([*notes][-1])
    assert note.startswith("val: class 3 has only 168 pixels") and "32 in data" in note


def test_without_annotation_loader_only_images_are_read(tmp_path):
    """A test set whose labels are withheld."""
    tree = make_tree("camvid", tmp_path)
    shutil.rmtree(tree.mask("val").parent)
    text = (
        "test_dataloader['dataset']['pipeline'] = [dict(type='LoadImageFromFile')]\n"
        "del test_dataloader['dataset']['data_prefix']['seg_map_path']"
    )
    assert run(tree, "--split", "test", text=text) == 0
    tree.image("val").write_bytes(b"")
    assert run(tree, "--split", "test", text=text) == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("test_dataloader=None", "no test_dataloader"),
        ("test_dataloader.dataset.data_root=/nowhere", "/nowhere"),
        ("test_dataloader.dataset.metainfo.classes=[car,sky]", "bicyclist') and ('car', 'sky')"),
    ],
)
def test_could_not_run(option, message, tmp_path, capsys):
    flags = ["--split", "val", "test", "--cfg-options", option]
    assert run(make_tree("camvid", tmp_path), *flags) == 2
    output, error = capsys.readouterr()
    assert message in error and "Traceback" not in error and output == ""


def test_suffixes_in_upper_case(tmp_path):
    """A camera's .JPG counts for img_suffix=".jpg", and "*" for all formats, in a list, too."""
    tree = make_tree("ade20k", tmp_path)
    cfg = tree.config()
    tree.image("train", 0).rename(tree.image("train", 0).with_suffix(".JPG"))
    Image.open(tree.image("train", 1)).save(tree.image("train", 1).with_suffix(".png"))
    tree.image("train", 1).unlink()
    for suffix, pairs in ((".jpg", 2), ("*", 3)):
        cfg.train_dataloader.dataset.img_suffix = suffix
        problems, (found,), _ = check_dataset(cfg, ["train"])
        assert not problems and len(found.items) == pairs
    (tmp_path / "list.txt").write_text("\n".join(tree.mask("train", i).stem for i in range(3)))
    cfg.train_dataloader.dataset.ann_file = str(tmp_path / "list.txt")
    problems, (found,), _ = check_dataset(cfg, ["train"])
    assert not problems and len(found.items) == 3
