"""Names of classes from the files of annotation tools, and masks of blended or declared values."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from matplotlib.figure import Figure
from mmengine.config import Config
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext import commands
from mmseg_ext.own_dataset.classes import read_classes
from tests.datasets.trees import random_image, save
from tests.messages import check_message, lines_with

SIZE = (48, 40)  # width, height
NAMES = ["background", "big cat", "dog", "cow"]
COLORS = np.array([[0, 0, 0], [250, 50, 83], [51, 221, 255], [36, 179, 83]], np.uint8)
LABELMAP = "# label:color_rgb:parts:actions\n" + "".join(
    f"{name}:{red},{green},{blue}::\n"
    for name, (red, green, blue) in zip(NAMES, COLORS.tolist(), strict=True)
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)


def label_of(number: int, classes: int = 3) -> np.ndarray:
    """Return a label map (H, W) with a rectangle of each class but the first."""
    label, random = np.zeros(SIZE[::-1], np.uint8), np.random.RandomState(number)
    for i in range(1, classes):
        top, left = random.randint(0, 10, 2)
        label[top + 8 * i - 8 : top + 8 * i, left : left + 25] = i
    return label


def write(folder: Path, draw, count: int = 4, classes: int = 3, masks: str = "masks") -> None:
    """Write photos, and the masks that `draw` makes of label maps."""
    for i in range(count):
        save(folder / f"images/{i}.jpg", random_image(np.random.RandomState(i), SIZE))
        save(folder / masks / f"{i}.png", draw(label_of(i, classes)))


def run(folder: Path, *flags: str, masks: str = "masks") -> int:
    paths = ["--images", str(folder / "images"), "--masks", str(folder / masks)]
    return commands.run("new_project", [str(folder / "p"), *paths, "--from", "scratch", *flags])


def classes_of(folder: Path) -> list[str]:
    return Config.fromfile(folder / "p/config.py").classes


def project_labels(folder: Path) -> dict[int, np.ndarray]:
    found = (folder / "p/data/annotations").rglob("*.png")
    return {int(path.stem): np.array(Image.open(path)) for path in found}


def assert_labels(folder: Path, numbers) -> None:
    """Fail unless class i of `label_of` has the number `numbers[i]` in all label maps."""
    table = np.array(numbers, np.uint8)
    found = project_labels(folder)
    assert found
    for i, label in found.items():
        assert np.array_equal(label, table[label_of(i, len(table))])


# Flags, the classes, and the numbers of the first three.
ORDERS = {
    "the file's": ([], NAMES, [0, 1, 2]),
    "the same": (["--classes", *NAMES], NAMES, [0, 1, 2]),
    "an own order": (["--classes", *reversed(NAMES)], NAMES[::-1], [3, 2, 1]),
    "own names": (["--classes", *"abcd"], [*"abcd"], [0, 1, 2]),
    "without cow": (["--classes", *NAMES[:3]], NAMES[:3], [0, 1, 2]),
    "ignored": (["--ignore", "dog"], ["background", "big cat", "cow"], [0, 1, 255]),
    "ignored class": (
        ["--classes", *NAMES, "--ignore", "dog"],
        ["background", "big cat", "cow"],
        [0, 1, 255],
    ),
    "ignored color": (["--ignore", "#33ddff"], ["background", "big cat", "cow"], [0, 1, 255]),
}


@pytest.mark.parametrize("case", ORDERS)
def test_colors_have_the_order_of_cvats_labelmap(case, tmp_path, capsys):
    """In ascending order the dog's color is before the cat's. No mask has the cow, which stays."""
    flags, classes, numbers = ORDERS[case]
    write(tmp_path, COLORS.__getitem__, masks="export/SegmentationClass")
    (tmp_path / "export/labelmap.txt").write_text(LABELMAP)
    for _ in range(2):  # the second time for more photos
        assert run(tmp_path, *flags, masks="export/SegmentationClass") == 0
        assert_labels(tmp_path, numbers)
        assert classes_of(tmp_path) == list(classes)
    assert lines_with(capsys.readouterr().out, "export/labelmap.txt")
    palette = Config.fromfile(tmp_path / "p/config.py").palette
    if classes == NAMES:
        assert palette == COLORS.tolist()


def test_a_class_keeps_its_number_when_its_first_photo_comes(tmp_path, capsys):
    write(tmp_path, COLORS.__getitem__)
    (tmp_path / "labelmap.txt").write_text(LABELMAP)
    assert run(tmp_path) == 0
    write(tmp_path, COLORS.__getitem__, count=7, classes=4)
    capsys.readouterr()
    assert run(tmp_path) == 0
    assert_labels(tmp_path, [0, 1, 2, 3])
    assert classes_of(tmp_path) == NAMES
    assert "is new" not in capsys.readouterr().out


def test_a_project_from_before_the_file_keeps_its_classes(tmp_path):
    """Only a new value gets a name from the file."""
    write(tmp_path, COLORS.__getitem__)
    assert run(tmp_path, "--classes", "a", "b", "c") == 0
    (tmp_path / "labelmap.txt").write_text(LABELMAP)
    assert run(tmp_path) == 0
    assert_labels(tmp_path, [0, 2, 1])  # by color
    assert classes_of(tmp_path) == ["a", "b", "c"]
    write(tmp_path, COLORS.__getitem__, classes=4)
    assert run(tmp_path) == 0
    assert classes_of(tmp_path) == ["a", "b", "c", "cow"]
    assert_labels(tmp_path, [0, 2, 1, 3])


def gray(label: np.ndarray) -> np.ndarray:
    return label


def colors(label: np.ndarray) -> np.ndarray:
    return COLORS[label]


def white(label: np.ndarray) -> np.ndarray:
    return (label > 0) * np.uint8(255)


def with_255(label: np.ndarray) -> np.ndarray:
    label = label.copy()
    label[-1] = 255
    return label


KAGGLE = "name,r,g,b\n" + "".join(
    f"{name}, {red}, {green}, {blue}\n"
    for name, (red, green, blue) in zip(NAMES, COLORS.tolist(), strict=True)
)
CAMVID = "".join(
    f"{red} {green} {blue}\t\t{name}\n"
    for name, (red, green, blue) in zip(NAMES, COLORS.tolist(), strict=True)
)
LINES = "\n".join(NAMES)
BY_NUMBER = {str(i): name for i, name in enumerate(NAMES)}
# The file and its text, the masks, the classes, and what `values:` prints.
FILES = {
    "class_dict.csv": (KAGGLE, colors, NAMES, "#fa3253 is big cat, #33ddff is dog, #24b353 is cow"),
    "label_colors.txt": (CAMVID, colors, NAMES, "#fa3253 is big cat, #33ddff is dog"),
    "_classes.csv": (
        "Pixel Value, Class\n0, background\n1, big cat\n2, dog\n3, cow\n",
        *(gray, NAMES, "0 is background, 1 is big cat, 2 is dog, 3 is cow"),
    ),
    "classes.txt": (LINES, gray, NAMES, "0 is background, 1 is big cat, 2 is dog, 3 is cow"),
    "class_names.txt": (LINES, with_255, NAMES, "1 is big cat, 2 is dog, 3 is cow, 255 is ignored"),
    "codes.txt": ("big cat\ndog", gray, NAMES[:3], "0 is background, 1 is big cat, 2 is dog"),
    "classes.txt of two": ("sky\nhouse\n", white, ["sky", "house"], "0 is sky, 255 is house"),
    "classes.txt of one": (
        "crack",
        white,
        ["background", "crack"],
        "0 is background, 255 is crack",
    ),
    "labelmap.txt of gray": (
        "none:9,9,9::\nup:8,8,8::\ndown:7,7,7::\n",  # CVAT imports such masks by the lines
        *(gray, ["none", "up", "down"], "0 is none, 1 is up, 2 is down"),
    ),
    "_classes.csv of objects": (
        "Pixel Value, Class\n2, dog\n1, cat\n",
        *(gray, ["background", "dog", "cat"], "0 is background, 2 is dog, 1 is cat"),
    ),
    "labelmap.txt of palettes": (LABELMAP, "palette", NAMES, "0 is background, 1 is big cat"),
    "labelmap.txt with parts": (
        LABELMAP.replace("83::", "83:head,tail:sits"),
        *(colors, NAMES, "#fa3253 is big cat, #33ddff is dog, #24b353 is cow"),
    ),
    "dataset_meta.json": (
        json.dumps(dict(label_map=BY_NUMBER, segmentation_colors=COLORS.tolist())),
        *(colors, NAMES, "#fa3253 is big cat, #33ddff is dog, #24b353 is cow"),
    ),
    "dataset_meta.json of gray": (
        json.dumps(dict(label_map=BY_NUMBER)),
        *(gray, NAMES, "0 is background, 1 is big cat, 2 is dog, 3 is cow"),
    ),
    "classes.txt of windows": (
        "\ufeffbackground\r\nbig cat\r\ndog\r\n\r\n",
        *(gray, NAMES[:3], "0 is background, 1 is big cat, 2 is dog"),
    ),
    "classes.txt with numbers": (
        "background\n2 wheeler\n3 wheeler\n",
        *(gray, ["background", "2 wheeler", "3 wheeler"], "1 is 2 wheeler, 2 is 3 wheeler"),
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_names_come_from_a_file(case, tmp_path, capsys):
    text, draw, classes, values = FILES[case]
    if draw == "palette":
        write(tmp_path, gray)
        for i in range(4):
            save(tmp_path / f"masks/{i}.png", label_of(i), COLORS[:3])
    else:
        write(tmp_path, draw)
    file = tmp_path / "masks" / case.partition(" ")[0]
    file.write_text(text, encoding="utf-8", newline="")
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert values in next(line for line in out.splitlines() if line.startswith("values: "))
    assert lines_with(out, file)
    assert classes_of(tmp_path) == classes


def test_classes_wins_over_a_file(tmp_path, capsys):
    """Names of gray values are in the order of the values, also if the file has them, too."""
    write(tmp_path, gray)
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd")
    assert run(tmp_path, "--classes", "c", "b", "a") == 0
    assert classes_of(tmp_path) == ["c", "b", "a"]
    assert "0 is c, 1 is b, 2 is a" in capsys.readouterr().out
    assert_labels(tmp_path, [0, 1, 2])


def test_void_and_colors_that_the_file_lacks_are_ignored(tmp_path, capsys):
    """Until --classes names them."""
    write(tmp_path, colors, classes=4)
    (tmp_path / "labelmap.txt").write_text("Void:0,0,0::\ndog:51,221,255::\nbig cat:250,50,83::\n")
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert "#33ddff is dog, #fa3253 is big cat, #000000 is ignored, #24b353 is ignored" in out
    assert classes_of(tmp_path) == ["dog", "big cat"]
    assert_labels(tmp_path, [255, 1, 0, 255])
    assert run(tmp_path) == 0
    assert_labels(tmp_path, [255, 1, 0, 255])
    (tmp_path / "p/config.py").unlink()
    (tmp_path / "p/data/classes.csv").unlink()
    assert run(tmp_path, "--classes", "Void", "dog", "big cat", "cow") == 0
    assert_labels(tmp_path, [0, 2, 1, 3])


def test_void_and_one_class_are_two_classes(tmp_path):
    write(tmp_path, gray, classes=2)
    (tmp_path / "classes.txt").write_text("void\nroad\n")
    assert run(tmp_path) == 0
    assert classes_of(tmp_path) == ["void", "road"]
    assert_labels(tmp_path, [0, 1])


UNUSED = {
    "other colors": ("labelmap.txt", "a:1,2,3::\nb:4,5,6::\n", colors),
    "lines for colors": ("classes.txt", "a\nb\nc", colors),
    "many lines": ("classes.txt", "\n".join(map(str, range(1000))), gray),
    "a name twice": ("classes.txt", "a\nb\nb", gray),
    "other values": ("_classes.csv", "Pixel Value, Class\n7, a\n8, b\n9, c\n10, d", gray),
    "empty": ("classes.txt", "\n", gray),
    "no text": ("classes.txt", "\udc80\udcff\0", gray),
    "another encoding": ("classes.txt", "a\n\udce4\nb", gray),
}


@pytest.mark.parametrize("case", UNUSED)
def test_a_file_that_does_not_fit_is_a_note(case, tmp_path, capsys):
    name, text, draw = UNUSED[case]
    write(tmp_path, draw)
    (tmp_path / name).write_text(text, errors="surrogateescape")
    assert run(tmp_path) == 0
    (note,) = lines_with(capsys.readouterr().out, tmp_path / name)
    check_message(note, todo="--classes")
    assert classes_of(tmp_path) == ["class_0", "class_1", "class_2"]


def test_files_of_several_folders(tmp_path, capsys):
    """Roboflow writes one for each split, next to photos and masks."""
    for split in ("train", "valid"):
        for i in range(3):
            photo = random_image(np.random.RandomState(i + len(split)), SIZE)
            save(tmp_path / f"images/{split}/{i}.jpg", photo)
            save(tmp_path / f"images/{split}/{i}_mask.png", label_of(i))
        text = "Pixel Value, Class\n0, background\n1, cat\n2, dog\n"
        (tmp_path / f"images/{split}/_classes.csv").write_text(text)
    assert run(tmp_path, masks="images") == 0
    assert classes_of(tmp_path) == ["background", "cat", "dog"]
    assert lines_with(capsys.readouterr().out, tmp_path / "images/train/_classes.csv")


def enlarged(interpolation: int, factor: int = 1):
    """Return a function that draws masks at a quarter of the size and enlarges them."""

    def draw(label: np.ndarray) -> np.ndarray:
        return cv2.resize(label[::4, ::4] * np.uint8(factor), SIZE, interpolation=interpolation)

    return draw


def jpeg(label: np.ndarray) -> np.ndarray:
    data = cv2.imencode(".jpg", COLORS[label])[1]
    return cv2.imdecode(data, cv2.IMREAD_UNCHANGED)


BLENDED = {
    "gray": (enlarged(cv2.INTER_LINEAR, 4), "--ignore"),
    "cubic": (enlarged(cv2.INTER_CUBIC, 40), "--ignore"),
    "colors": (lambda label: enlarged(cv2.INTER_LINEAR)(COLORS[label]), "--ignore"),
    "two classes": (lambda label: enlarged(cv2.INTER_LINEAR, 255)(label // 2), "--binary"),
    "JPEG": (jpeg, "nearest neighbor"),
}


@pytest.mark.parametrize("case", BLENDED)
def test_masks_resized_with_interpolation_bring_a_hint(case, tmp_path, capsys):
    draw, todo = BLENDED[case]
    write(tmp_path, draw)
    run(tmp_path)
    captured = capsys.readouterr()
    (hint,) = lines_with(captured.out + captured.err, "resized")
    check_message(hint, tmp_path / "masks/0.png", todo=todo)


def thin_lines(label: np.ndarray) -> np.ndarray:
    """Draw twelve classes, of which some are only lines of one pixel between others."""
    label = np.repeat(np.arange(12, dtype=np.uint8), 4)[None].repeat(SIZE[1], 0) + label
    label[:, 10], label[5] = 9, 3
    return label


SHARP = {
    "nearest": enlarged(cv2.INTER_NEAREST, 40),
    "a border class": lambda label: label * 2 + (cv2.dilate(label, np.ones((3, 3))) > label),
    "thin lines": thin_lines,
    "small parts": lambda label: (
        cv2.resize(thin_lines(label), (12, 10), interpolation=0).repeat(4, 0).repeat(4, 1)
    ),
}


@pytest.mark.parametrize("case", SHARP)
def test_sharp_masks_bring_no_hint(case, tmp_path, capsys):
    write(tmp_path, SHARP[case])
    assert run(tmp_path) == 0
    assert "resized" not in capsys.readouterr().out


@pytest.mark.parametrize("missing", [0, 9, 255, -9999])
def test_declared_nodata_is_ignored_unless_it_is_zero(missing, tmp_path, capsys):
    """As GDAL declares it; 0 is mostly the background."""
    write(tmp_path, gray)
    for i in range(4):
        label = label_of(i, 2).astype(np.int16)
        label[:5] = missing
        (tmp_path / f"masks/{i}.png").unlink()
        tag = (42113, "s", 0, f"{missing}\0", True)
        path = tmp_path / f"masks/{i}.tif"
        tifffile.imwrite(path, label, photometric="minisblack", extratags=[tag])
    assert run(tmp_path) == 0
    assert ("nodata is ignored" in capsys.readouterr().out) == bool(missing)
    assert run(tmp_path) == 0
    for i, label in project_labels(tmp_path).items():
        expected = label_of(i, 2)
        expected[:5] = 255 if missing else 0
        assert np.array_equal(label, expected)
    classes = read_classes(tmp_path / "p/data")
    assert classes and classes.numbers == {"0": 0, "1": 1} | ({"nodata": 255} if missing else {})


def test_a_transparent_index_next_to_index_0_is_a_note(tmp_path, capsys):
    """Both are background, so a class would vanish without a word."""

    def run_with(index: int) -> str:
        for i in range(4):
            mask = Image.fromarray(label_of(i), "P")
            mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
            mask.save(tmp_path / f"masks/{i}.png", transparency=index)
        shutil.rmtree(tmp_path / "p", ignore_errors=True)
        assert run(tmp_path) == 0
        return capsys.readouterr().out

    write(tmp_path, gray)
    assert not lines_with(run_with(0), "transparent")
    assert len(classes_of(tmp_path)) == 3
    (note,) = lines_with(run_with(1), "transparent")
    check_message(note, 4, todo=True)
    assert len(classes_of(tmp_path)) == 2


def test_pixels_without_data_are_no_object(tmp_path):
    """Of a GeoTIFF of numbered objects they are ignored; next to them nothing else changes."""
    write(tmp_path, gray)
    for i in range(4):
        numbers = np.zeros((40, 40), np.int16)
        numbers[10:20, 5:15], numbers[25:35, 20:35] = 300 + i, 7
        numbers[:, 38:] = -9999
        (tmp_path / f"masks/{i}.png").unlink()
        Image.fromarray(np.zeros((40, 40, 3), np.uint8) + 50 * i).save(tmp_path / f"images/{i}.jpg")
        tag = (42113, "s", 0, "-9999\0", True)
        path = tmp_path / f"masks/{i}.tif"
        tifffile.imwrite(path, numbers, photometric="minisblack", extratags=[tag])
    assert run(tmp_path, "--objects") == 0
    for label in project_labels(tmp_path).values():
        assert (label[:, 38:] == 255).all()
        assert np.array_equal(label[:, :38] > 0, numbers[:, :38] > 0)
    assert classes_of(tmp_path) == ["background", "object", "border"]


def test_masks_as_pgm_keep_their_values(tmp_path):
    """Their white is the largest class, which differs between masks; other programs stretch it."""
    write(tmp_path, gray)
    for i in range(4):
        label = label_of(i, 2 + i % 2)
        head = f"P5\n{SIZE[0]} {SIZE[1]}\n{label.max()}\n".encode()
        (tmp_path / f"masks/{i}.png").unlink()
        (tmp_path / f"masks/{i}.pgm").write_bytes(head + label.tobytes())
    assert run(tmp_path) == 0
    for i, label in project_labels(tmp_path).items():
        assert np.array_equal(label, label_of(i, 2 + i % 2))


def test_an_index_without_a_color(tmp_path):
    """Pillow writes only the colors that it is given; 255 is still ignored."""
    write(tmp_path, with_255)
    for i in range(4):
        path = tmp_path / f"masks/{i}.png"
        save(path, with_255(label_of(i)), np.arange(60))
        assert len(Image.open(path).getpalette()) == 60
    assert run(tmp_path) == 0
    for i, label in project_labels(tmp_path).items():
        assert np.array_equal(label, with_255(label_of(i)))


@pytest.mark.filterwarnings("error:Image size")
def test_pictures_above_pillows_limit(tmp_path, monkeypatch):
    """A project of them is made, checked and read for training. The limit stays as it was."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    with monkeypatch.context() as own:
        own.setattr(Image, "MAX_IMAGE_PIXELS", None)  # for this test's reading
        write(tmp_path, colors)
        for i in range(4):
            photo = random_image(np.random.RandomState(i), SIZE[::-1])
            save(tmp_path / f"images/{i}.jpg", photo, orientation=6)
    assert run(tmp_path) == 0
    config = str(tmp_path / "p/config.py")
    assert commands.run("check_dataset", [config, "--workers", "0"]) == 0
    cfg = Config.fromfile(config)
    assert len(list(DATASETS.build(cfg.train_dataloader.dataset))) == 3
    assert Image.MAX_IMAGE_PIXELS == 9
    monkeypatch.undo()
    assert len(project_labels(tmp_path)) == 4


def test_colors_of_too_many_objects_are_an_error(tmp_path, capsys):
    """As of a photo; its colors are not the objects of a mask."""
    for i in range(2):
        photo = np.random.RandomState(i).randint(0, 256, (300, 300, 3), np.uint8)
        save(tmp_path / f"images/{i}.png", photo)
        save(tmp_path / f"masks/{i}.png", photo)
    flags = ["--images", str(tmp_path / "images"), "--masks", str(tmp_path / "masks")]
    assert commands.run("new_project", [str(tmp_path / "p"), *flags, "--objects"]) == 1
    check_message(capsys.readouterr().err, "0.png", 65535, where="mmseg_ext: none of 2", todo=True)
