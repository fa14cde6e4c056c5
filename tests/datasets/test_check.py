"""The dataset check on tiny datasets of four layouts: clean ones, and one for each way to break."""

import json
import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.commands.check_dataset import main
from mmseg_ext.datasets.check.pairs import Pair, Reading, read_pair
from mmseg_ext.datasets.labels import LabelRule, histogram
from tests.datasets.trees import (
    BASES,
    SIZE,
    Tree,
    make_tree,
    random_label,
    save_image,
    save_mask,
    voc_palette,
)

RNG = np.random.RandomState(1)
SHAPE = SIZE[::-1]


@pytest.fixture
def no_picture(monkeypatch):
    """Drawing takes a second, and one test has looked at it."""
    monkeypatch.setattr("mmseg_ext.commands.check_dataset.draw_overlays", lambda *_: False)


def run(tree: Tree, *flags: str, text: str = "") -> int:
    config = tree.write_config(text)
    picture = tree.root.parent / "picture.png"
    return main([str(config), "--workers", "0", "--overlays", str(picture), *flags])


def problem_lines(output: str) -> list[str]:
    return [
        line
        for line in output.splitlines()
        if re.match(r"(train|val|test): (?!note)[a-z-]+: ", line)
    ]


@pytest.mark.parametrize("layout", BASES)
def test_clean(layout, tmp_path, capsys):
    tree = make_tree(layout, tmp_path)
    assert run(tree, "--json", str(tmp_path / "result.json")) == 0
    assert problem_lines(capsys.readouterr().out) == []
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.width == 1200
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["clean"] and result["problems"] == []
    train = [pair for split in ("train", "aug") for pair in tree.pairs.get(split, ())]
    found = result["splits"]["train"]
    assert found["pairs"] == len(train)
    assert found["sizes"] == {"24x18": len(train)}
    labels = np.stack([np.array(Image.open(mask)) for _, mask in train])  # (N, H, W)
    offset = 1 if layout == "ade20k" else 0
    for i in range(len(found["classes"])):
        assert found["pixels"][i] == (labels == i + offset).sum()
        assert found["images"][i] == (labels == i + offset).any(axis=(1, 2)).sum()
    assert found["ignored_pixels"] == labels.size - sum(found["pixels"])
    assert found["ignored_pixels"] == (labels == (0 if layout == "ade20k" else 255)).sum()


# --- one break each: what is done to the tree, and what the check says ----------------------------


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def rewrite(path, value, dtype=np.uint8, shape=SHAPE):
    """A label map of class 1 with three pixels of `value`."""
    label = np.ones(shape, dtype)
    label[0, :3] = value
    save_mask(path, label)


def shuffled_palette(path):
    """As quantising a colour mask leaves it: the colours of classes 0, 5, 7 in first-seen order."""
    palette = np.zeros((256, 3), np.uint8)
    palette[:3] = voc_palette()[[5, 0, 7]]
    save_mask(path, random_label(RNG, [0, 1, 2]), palette)


def same_name_in_val(tree):
    for source, split in ((tree.image("train"), "val"), (tree.mask("train"), "val")):
        shutil.copy(source, str(source).replace("/train/", f"/{split}/"))


CASES: list[tuple[str, str, Callable[[Tree], object], str, str]] = [
    # layout, kind, break, file that is named, values
    ("voc", "missing-mask", lambda t: t.mask().unlink(), "2007_a.png", "no such file, image"),
    ("voc", "missing-mask", lambda t: t.mask("aug").unlink(), "2007_d.png", "no such file"),
    ("cityscapes", "missing-mask", lambda t: t.mask("val").unlink(), "town_000000_gtFine", "no s"),
    ("voc", "missing-image", lambda t: t.image("val").unlink(), "2007_f.jpg", "there is no such"),
    ("camvid", "mask-without-image", lambda t: t.image().unlink(), "train_0000.png", "no image"),
    (
        "ade20k",
        "mask-without-image",
        lambda t: t.image("val", 2).unlink(),
        "ADE_val_00000002.png",
        "has no image .*ADE_val_00000002.jpg",
    ),
    ("ade20k", "unreadable-image", lambda t: truncate(t.image()), "ADE_train_00000000.jpg", "trun"),
    (
        "cityscapes",
        "unreadable-image",
        lambda t: t.image().write_text("not an image"),
        "town_000000_leftImg8bit.png",
        r"does not decode \(12 bytes",
    ),
    (
        "camvid",
        "unreadable-image",
        lambda t: t.image("val").write_bytes(b""),
        "val_0000.png",
        "is empty",
    ),
    ("ade20k", "unreadable-mask", lambda t: truncate(t.mask()), "ADE_train_00000000.png", "trunc"),
    ("voc", "unreadable-mask", lambda t: t.mask().write_bytes(b""), "2007_a.png", "is empty"),
    (
        "camvid",
        "size-mismatch",
        lambda t: save_mask(t.mask(), np.zeros((17, 24), np.uint8)),
        "train_0000.png",
        r"is 24x17, its image .*train_0000.png 24x18",
    ),
    (
        "voc",
        "size-mismatch",
        lambda t: save_image(t.image("aug"), RNG, SHAPE),
        "2007_d.png",
        "is 24x18, its image .* 18x24",
    ),
    (
        "ade20k",
        "mask-format",
        lambda t: save_image(t.mask(), RNG),
        "ADE_train_00000000.png",
        r"3 channels, with \d+ colours",
    ),
    (
        "cityscapes",
        "mask-format",
        lambda t: save_mask(t.mask(), np.full((*SHAPE, 4), (128, 64, 32, 255), np.uint8)),
        "town_000000_gtFine",
        r"4 channels, with 1 colours \(\(128, 64, 32, 255\)\)",
    ),
    (
        "camvid",
        "mask-format",
        lambda t: rewrite(t.mask(), 300, np.uint16),
        "train_0000.png",
        r"uint16 with values 1 to 300; .*\(300 would be read as 44\)",
    ),
    (
        "voc",
        "mask-format",
        lambda t: rewrite(t.mask(), 2, np.uint16),
        "2007_a.png",
        "uint16 with values 1 to 2; expected 8 bits",
    ),
    (
        "cityscapes",
        "mask-format",
        lambda t: save_mask(t.mask(), np.zeros((*SHAPE, 2), np.uint8)),
        "town_000000_gtFine",
        "2 channels",
    ),
    (
        "voc",
        "palette-order",
        lambda t: shuffled_palette(t.mask()),
        "2007_a.png",
        "0 has the colour of class 5, 1 has the colour of class 0, 2 has the colour of class 7",
    ),
    (
        "voc",
        "label-range",
        lambda t: rewrite(t.mask(), 21),
        "2007_a.png",
        r"the 21 classes: 21 \(3 pixels\); legal are 0 to 20 and 255$",
    ),
    (
        "voc",
        "label-range",
        lambda t: rewrite(t.mask("aug"), 200),
        "2007_d.png",
        r"200 \(3 pixels\)",
    ),
    (
        "ade20k",
        "label-range",
        lambda t: rewrite(t.mask(), 151),
        "ADE_train_00000000.png",
        r"151 \(3 pixels\); legal are 0 to 150 and 255, with reduce_zero_label",
    ),
    (
        "cityscapes",
        "label-range",
        lambda t: save_mask(t.mask(), np.full(SHAPE, 33, np.uint8)),
        "town_000000_gtFine_labelTrainIds.png",
        r"33 \(432 pixels\)",
    ),
    (
        "camvid",
        "label-range",
        lambda t: rewrite(t.mask("val", 1), 11),
        "val_0001.png",
        r"the 11 classes: 11 \(3 pixels\); legal are 0 to 10 and 255",
    ),
    (
        "voc",
        "all-ignored",
        lambda t: save_mask(t.mask(), np.full(SHAPE, 255, np.uint8)),
        "2007_a.png",
        r"every pixel is ignored: 255 \(432 pixels\)",
    ),
    (
        "ade20k",
        "all-ignored",
        lambda t: save_mask(t.mask("val"), np.zeros(SHAPE, np.uint8)),
        "ADE_val_00000000.png",
        r"every pixel is ignored: 0 \(432 pixels\)",
    ),
    (
        "cityscapes",
        "all-ignored",
        lambda t: save_mask(t.mask(), np.full(SHAPE, 255, np.uint8)),
        "town_000000_gtFine",
        "every pixel is ignored",
    ),
    (
        "voc",
        "shared-name",
        lambda t: (t.root / "ImageSets/Segmentation/val.txt").write_text("2007_f\n2007_a\n"),
        "2007_a.jpg",
        "2007_a is also in train .*the same image",
    ),
    (
        "camvid",
        "shared-name",
        same_name_in_val,
        "images/val/train_0000.png",
        "train_0000 is also in train .*the same image",
    ),
    (
        "voc",
        "listed-twice",
        lambda t: (t.root / "ImageSets/Segmentation/val.txt").write_text("2007_f\n2007_f\n"),
        "2007_f.jpg",
        "listed 2 times",
    ),
]
assert len(CASES) >= 20 and {case[0] for case in CASES} == BASES.keys()


@pytest.mark.parametrize(
    ("layout", "kind", "damage", "file", "values"),
    CASES,
    ids=[f"{layout}-{kind}-{i}" for i, (layout, kind, *_) in enumerate(CASES)],
)
def test_broken(layout, kind, damage, file, values, tmp_path, capsys, no_picture):
    """Exactly one line, with kind, file and values, and exit status 1."""
    tree = make_tree(layout, tmp_path)
    damage(tree)
    assert run(tree) == 1
    output = capsys.readouterr().out
    (line,) = problem_lines(output)
    assert f": {kind}: " in line
    assert file in line
    assert re.search(values, line), line
    assert f"1 {kind}" in output.splitlines()[-1]


def test_another_image_of_the_same_name(tmp_path, capsys, no_picture):
    """A problem too, and told apart from the same image."""
    tree = make_tree("camvid", tmp_path)
    same_name_in_val(tree)
    save_image(tree.root / "images/val/train_0000.png", RNG)
    assert run(tree) == 1
    assert "another image" in problem_lines(capsys.readouterr().out)[0]


def test_allow_overlap(tmp_path, no_picture):
    tree = make_tree("camvid", tmp_path)
    same_name_in_val(tree)
    assert run(tree, text="allow_overlap = True") == 0


def test_split_alone_has_no_overlap(tmp_path, no_picture):
    tree = make_tree("camvid", tmp_path)
    same_name_in_val(tree)
    assert run(tree, "--split", "val") == 0


def test_every_problem_is_a_line(tmp_path, capsys, no_picture):
    """Several at once, in the order train, val; JSON holds the same with the values."""
    tree = make_tree("ade20k", tmp_path)
    rewrite(tree.mask("train", 0), 151)
    truncate(tree.image("train", 1))
    tree.mask("val", 1).unlink()
    assert run(tree, "--json", str(tmp_path / "out" / "result.json")) == 1
    lines = problem_lines(capsys.readouterr().out)
    kinds = ["train: label-range", "train: unreadable-image", "val: missing-mask"]
    assert [line[: len(kind)] for line, kind in zip(lines, kinds, strict=True)] == kinds
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [f"{p['split']}: {p['kind']}: {p['message']}" for p in result["problems"]] == lines
    assert result["problems"][0]["values"] == {"151": 3}
    assert result["problems"][0]["file"] == str(tree.mask("train", 0))
    assert not result["clean"]


def test_workers_report_what_one_process_reports(tmp_path, capsys, no_picture):
    tree = make_tree("voc", tmp_path)
    rewrite(tree.mask("aug", 1), 77)
    outputs = []
    for workers in ("0", "2"):
        assert run(tree, "--workers", workers, "--json", str(tmp_path / f"{workers}.json")) == 1
        outputs.append(capsys.readouterr().out.splitlines()[:-1])  # the last line has the time
    assert outputs[0] == outputs[1]
    assert (tmp_path / "0.json").read_text() == (tmp_path / "2.json").read_text()


def test_palette_masks_read_as_colours(tmp_path, capsys, no_picture):
    """VOC's indexed masks are in order with Pillow, and colour masks with OpenCV."""
    tree = make_tree("voc", tmp_path)
    flag = "train_dataloader.dataset.datasets.0.pipeline.1.imdecode_backend=cv2"
    assert run(tree, "--cfg-options", flag) == 1
    lines = problem_lines(capsys.readouterr().out)
    assert len(lines) == 3  # train.txt
    assert all("imdecode_backend='pillow'" in line for line in lines)


def test_palette_for_the_eye_is_no_problem(tmp_path, no_picture):
    """Colours that are not the dataset's say nothing of the order of the classes."""
    tree = make_tree("voc", tmp_path)
    palette = np.tile(np.arange(256)[:, None], 3)
    save_mask(tree.mask(), random_label(RNG, range(21)), palette)
    assert run(tree) == 0


def test_class_count_of_the_model(tmp_path, capsys, no_picture):
    tree = make_tree("cityscapes", tmp_path)
    text = "model = dict(decode_head=dict(num_classes=21), auxiliary_head=[dict(num_classes=19)])"
    assert run(tree, text=text) == 1
    lines = problem_lines(capsys.readouterr().out)
    assert [line.split(": ", 1)[0] for line in lines] == ["train", "val"]
    assert "model.decode_head.num_classes is 21, the dataset has 19 classes" in lines[0]


def test_reduce_zero_label_in_two_places(tmp_path, capsys, no_picture):
    tree = make_tree("ade20k", tmp_path)
    flag = "train_dataloader.dataset.pipeline.1.reduce_zero_label=False"
    assert run(tree, "--cfg-options", flag) == 1
    (line,) = problem_lines(capsys.readouterr().out)
    assert "reduce_zero_label is True in the dataset and False in the annotation loader" in line


def test_subset_of_classes(tmp_path, capsys, no_picture):
    """Classes that are left out are ignored; a value that was never a class is not."""
    tree = make_tree("camvid", tmp_path)
    classes = "['road', 'car', 'sky']"
    flags = [f"{s}_dataloader.dataset.metainfo.classes={classes}" for s in ("train", "val", "test")]
    assert run(tree, "--json", str(tmp_path / "a.json"), "--cfg-options", *flags) == 0
    found = json.loads((tmp_path / "a.json").read_text())["splits"]["train"]
    labels = np.stack([np.array(Image.open(mask)) for _, mask in tree.pairs["train"]])
    assert found["classes"] == ["road", "car", "sky"]
    assert found["pixels"] == [int((labels == old).sum()) for old in (3, 8, 0)]
    rewrite(tree.mask(), 11)
    capsys.readouterr()
    assert run(tree, "--cfg-options", *flags) == 1
    (line,) = problem_lines(capsys.readouterr().out)
    assert "11 (3 pixels); legal are 0 to 10 and 255, with a mapping of classes" in line


def test_absent_class_is_a_note(tmp_path, capsys, no_picture):
    tree = make_tree("voc", tmp_path)
    for _, mask in tree.pairs["val"]:
        save_mask(mask, random_label(RNG, [0, 1]))
    assert run(tree) == 0
    assert "val: note: no pixel of bicycle, bird" in capsys.readouterr().out


def test_without_annotation_loader_only_images_are_read(tmp_path, no_picture):
    """A test set whose labels are withheld."""
    tree = make_tree("camvid", tmp_path)
    shutil.rmtree(tree.root / "annotations" / "val")
    text = (
        "test_dataloader['dataset']['pipeline'] = [dict(type='LoadImageFromFile')]\n"
        "del test_dataloader['dataset']['data_prefix']['seg_map_path']"
    )
    assert run(tree, "--split", "test", text=text) == 0
    tree.image("val").write_bytes(b"")
    assert run(tree, "--split", "test", text=text) == 1


def test_validation_and_test_may_be_the_same(tmp_path, no_picture):
    """Also where their pipelines differ; half of it in common is a problem."""
    tree = make_tree("voc", tmp_path)
    text = "test_dataloader['batch_size'] = 2\ntest_dataloader['dataset']['pipeline'].pop()\n"
    assert run(tree, text=text) == 0
    lists = tree.root / "ImageSets/Segmentation"
    (lists / "half.txt").write_text("2007_f\n")
    text = "test_dataloader['dataset']['ann_file'] = 'ImageSets/Segmentation/half.txt'\n"
    assert run(tree, text=text) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["CONFIG", "--split", "test", "--cfg-options", "test_dataloader=None"], "no test_datalo"),
        (["CONFIG", "--cfg-options", "train_dataloader.dataset.data_root=/nowhere"], "/nowhere"),
        (["CONFIG", "--cfg-options", "train_dataloader.dataset.type=NoDataset"], "NoDataset"),
        (["CONFIG", "--workers", "-1"], "--workers must be 0 or more, not -1"),
        (["BROKEN"], "SyntaxError"),
    ],
)
def test_could_not_run(flags, message, tmp_path, capsys, no_picture):
    tree = make_tree("camvid", tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text("model = dict(\n")
    names = {"CONFIG": str(tree.write_config()), "BROKEN": str(broken)}
    assert main([names.get(flag, flag) for flag in flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("flag", ["--split training", "--cfg-options xx"])
def test_wrong_flag_is_status_2(flag, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["config.py", *flag.split()])
    assert exit_.value.code == 2
    assert flag.split()[1] in capsys.readouterr().err


def test_large_label_map_is_counted_exactly():
    """Above 2**24 pixels float32 bins would stop counting."""
    label = np.zeros((4097, 4097), np.uint8)
    label[0, 0] = 3
    counts = histogram(label)
    assert counts[0] == 4097**2 - 1 and counts[3] == 1


def test_counts_of_a_pair(tmp_path):
    tree = make_tree("ade20k", tmp_path)
    label = np.zeros(SHAPE, np.uint8)
    label[:2], label[2:3] = 150, 255
    save_mask(tree.mask(), label)
    rule = LabelRule(150, reduce_zero_label=True)
    pair = Pair(str(tree.image()), str(tree.mask()), rule)
    seen = read_pair(pair, Reading(), "train", [])
    assert seen.problem is None and seen.size == SIZE
    counts = rule.class_counts(seen.counts)
    assert counts[149] == 2 * SIZE[0] and counts.sum() == 2 * SIZE[0]
