"""The classes of values, and `classes.csv`, which the user edits."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.masks import Masks
from mmseg_ext.own_dataset.annotations.reader import Legend
from mmseg_ext.own_dataset.classes import Classes, Row, assign_classes, choose_classes, read_classes
from mmseg_ext.own_dataset.item import Notes
from tests.messages import check_message, raises_message


@pytest.mark.parametrize(
    ("values", "names", "ignored", "mapping"),
    [
        ([10, 20, 30], 0, [], [0, 1, 2]),
        ([0, 255], 2, [], [0, 1]),
        ([0, 255], 0, [], [0, 1]),
        ([0, 1, 255], 0, [], [0, 1, 255]),
        ([0, 128, 255], 0, [], [0, 1, 2]),
        ([0, 1, 255], 3, [], [0, 1, 2]),
        ([0, 2, 255], 4, [], [0, 2, 255]),
        ([0, 1, 3, 255], 4, [], [0, 1, 3, 255]),
        ([0, 1, 3, 255], 0, [], [0, 1, 2, 255]),
        ([1, 2, 255], 0, [], [0, 1, 255]),
        ([1, 2, 255], 3, [], [0, 1, 2]),
        ([1, 2, 9], 2, ["9"], [0, 1, 255]),
        (range(1000, 1255), 0, [], range(255)),
    ],
)
def test_classes_of_values(values, names, ignored, mapping):
    """With so many given names, or by default one for each class."""
    labels = {value: str(value) for value in values}
    given = list("abcd")[:names] or None
    expected = given or [f"class_{i}" for i in range(len({*mapping} - {255}))]
    classes = dict(zip(labels.values(), mapping, strict=True))
    assert assign_classes(labels, given, ignored) == (expected, classes)


def test_classes_of_names():
    labels = {0: "background", 1: "cat", 2: "dog"}
    own = {"background": 0, "cat": 1, "dog": 2}
    assert assign_classes(labels) == (list(labels.values()), own)
    swapped = {"background": 0, "cat": 2, "dog": 1}
    assert assign_classes(labels, ["dog", "cat"]) == (["background", "dog", "cat"], swapped)
    without = {"background": 255, "cat": 0, "dog": 1}
    assert assign_classes(labels, ["cat", "dog"], ["background"]) == (["cat", "dog"], without)
    with pytest.raises(ValueError, match="lacks 'dog'"):
        assign_classes(labels, ["cat"])


def choose(data: Path, values, names=None, ignored=(), listed=None):
    """Choose the classes of values or names, write their file, and return them and the notes."""
    texts = list(map(str, values))
    are_names = "background" in texts
    labels = dict(enumerate(texts)) if are_names else dict(zip(values, texts, strict=True))
    legend = Legend(labels, dict(zip(texts, texts, strict=True)), names=listed or {})
    reader, notes = (Labelme if are_names else Masks)([]), Notes()
    classes = choose_classes(legend, reader, names, list(ignored), data, notes)
    classes.write(data)
    return classes, list(map(str, notes))


@pytest.mark.parametrize("values", [(0, 1, 2), (0, 10, 20), (0, 1)])
def test_names_of_classes_can_be_ignored(values, tmp_path):
    """The values have the order of --classes. A second run is the same."""
    names = ["void", "cat", "dog"]
    for _ in range(2):
        classes, notes = choose(tmp_path, values, names, ["void"])
        assert classes.names == names[1:] and not notes
        assert classes.numbers["0"] == 255 and classes.numbers[str(values[1])] == 0
    with raises_message(ValueError, where="--ignore sky: "):
        choose(tmp_path / "other", values, names, ["sky"])


EDITS = {  # of soil, crop and weed: the lines, the classes, and the classes of 7, 9 and 11
    "names": ("7,earth,\n9,crop,\n11,weed,", ["earth", "crop", "weed"], [0, 1, 2]),
    "merged": ("7,soil,#010203\n9,plant,\n11,plant,", ["soil", "plant"], [0, 1, 1]),
    "ignored": ("7,soil,\n9,,\n11,weed,#ffffff", ["soil", "weed"], [0, 255, 1]),
    "order": ("11,weed,\n9,crop,\n7,soil,", ["weed", "crop", "soil"], [2, 1, 0]),
    "spreadsheet": (
        "\ufefftext;class;color\r\n7; a, b;\r\n9;c;\r\n11;c;",
        ["a, b", "c"],
        [0, 1, 1],
    ),
    "tabs": ("text\tclass\tcolor\n7\ta, b\t\n9\tc\t\n11\tc\t", ["a, b", "c"], [0, 1, 1]),
    "semicolons without a title": ("7;a;\r\n9;c;#010203\r\n11;c;", ["a", "c"], [0, 1, 1]),
    "a note": ("# 9, a kind of soil\n7,a\n9,c\n11,c\n# or b, too, later", ["a", "c"], [0, 1, 1]),
    "quotes": ('7,"a, b",\n9,c\n\n11,d', ["a, b", "c", "d"], [0, 1, 2]),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_is_followed(case, tmp_path):
    """Colors, too: a class has its first color; --classes of the first run is a note."""
    lines, names, numbers = EDITS[case]
    given = ["soil", "crop", "weed"]
    assert choose(tmp_path, (7, 9, 11), given)[0].names == given
    before = (tmp_path / "classes.csv").read_text()
    assert before == "text,class,color\n7,soil,#505050\n9,crop,#e69f00\n11,weed,#56b4e9\n"
    (tmp_path / "classes.csv").write_text(lines, encoding="utf-8")
    for _ in range(2):
        classes, notes = choose(tmp_path, (7, 9, 11), given)
        assert classes.names == names
        assert [classes.numbers[text] for text in ("7", "9", "11")] == numbers
        (note,) = notes
        check_message(note, "--classes", where=tmp_path / "classes.csv", todo="edit")
    if case == "merged":
        assert classes.palette == [[1, 2, 3], [230, 159, 0]]
    if case == "ignored":
        assert classes.palette == [[80, 80, 80], [255, 255, 255]]
        assert not choose(tmp_path, (7, 9, 11), None, ["9"])[1]
    assert not choose(tmp_path, (7, 9, 11))[1]


BAD = {
    "7,a,red\n9,b": "line 1",
    "text,class,color\n7,a,#000000,more\n9,b": "line 2",
    "7,a\n7,b": "line 2 has 7 again",
    "7,a\n9,a": "has 1 classes",
    "": "has 0 classes",
    "7,größe\n9,b": "UTF-8",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_line_is_an_error(text, tmp_path):
    (tmp_path / "classes.csv").write_bytes(text.encode("latin-1"))  # as spreadsheets write it
    with raises_message(ValueError, BAD[text], where=f"{tmp_path}/classes.csv: ", todo=True):
        read_classes(tmp_path)


NEW = {  # values of a further run, its flags, what the file with names has, and the new rows
    "number": ((7, 9, 11, 20), [], {}, "20,class_3,#009e73\n"),
    "255 far from others": ((7, 9, 255), [], {}, "255,class_3,#009e73\n"),
    "ignored": ((7, 20), ["20"], {}, "20,,\n"),
    "listed": ((7, 20), [], {"7": "soil", "20": "rock"}, "20,rock,#009e73\n"),
    "a known class": ((7, 20), [], {"20": "weed"}, "20,weed,#56b4e9\n"),
    "void": ((7, 20), [], {"20": "Void"}, "20,,\n"),
    "not listed": ((7, 20), [], {"7": "soil"}, "20,,\n"),
}


@pytest.mark.parametrize("case", NEW)
def test_a_new_value_is_a_line_at_the_end(case, tmp_path):
    """With a note; values that disappear stay."""
    values, ignored, listed, rows = NEW[case]
    choose(tmp_path, (7, 9, 11), ["soil", "crop", "weed"])
    before = (tmp_path / "classes.csv").read_text()
    (note,) = choose(tmp_path, values, None, ignored, listed)[1]
    check_message(note, rows.partition(",")[0], "is new", todo=tmp_path / "classes.csv")
    assert (tmp_path / "classes.csv").read_text() == before + rows
    assert not choose(tmp_path, values, None, [], listed)[1]


def test_255_is_ignored_if_it_comes_later(tmp_path):
    choose(tmp_path, (0, 1))
    assert choose(tmp_path, (0, 1, 255))[0].numbers == {"0": 0, "1": 1, "255": 255}


def test_new_names_are_classes_and_other_values_another_project(tmp_path):
    choose(tmp_path, ("background", "cat"))
    classes, _ = choose(tmp_path, ("background", "ant", "__ignore__"))
    assert classes.names == ["background", "cat", "ant"] and classes.numbers["__ignore__"] == 255
    with raises_message(ValueError, "cat", "7", todo="another"):
        choose(tmp_path, (7, 8))
    with raises_message(ValueError, where="--ignore 8: ", todo="classes.csv"):
        choose(tmp_path, ("background", "cat"), None, ["8"])


def test_classes_of_an_earlier_version_are_read(tmp_path):
    """It wrote JSON; a class can have no text."""
    text = '{"classes": ["a", "b", "c"], "labels": {"0": 0, "9": 2, "255": 255, "1": 0}}'
    (tmp_path / "classes.json").write_text(text)
    classes, notes = choose(tmp_path, (0, 9))
    assert classes.names == [*"abc"] and not notes
    assert classes.numbers == {"0": 0, "1": 0, "9": 2, "255": 255}
    (tmp_path / "classes.json").write_text("no longer read")
    assert read_classes(tmp_path).names == [*"abc"]


@pytest.mark.parametrize(
    ("values", "noted"),
    [((0, 5, 18, 255), True), ((0, 1, 255), False), ((0, 127, 255), False), ((0, 255), False)],
)
def test_255_far_from_other_values_is_a_note(values, noted, tmp_path):
    """As in a part of VOC's classes: it is perhaps ignored."""
    classes, notes = choose(tmp_path, values)
    assert noted == any("255 is a class; to ignore it" in note for note in notes)
    assert classes.numbers["255"] == (255 if values == (0, 1, 255) else len(values) - 1)


@pytest.mark.parametrize(
    ("values", "names", "noted"),
    [
        ((0, 1, 2, 255), "abcd", True),
        ((1, 2, 255), "abc", True),
        ((0, 1, 2, 255), "abcde", False),  # 255 is ignored, and 3 and 4 wait for their names
        ((0, 128, 255), "abc", False),
        ((0, 255), "ab", False),
    ],
)
def test_255_with_the_name_of_a_later_value_is_a_note(values, names, noted, tmp_path):
    """What it advises makes the last name that of the value that no mask has yet."""
    classes, notes = choose(tmp_path, values, list(names))
    assert classes.names == list(names) and len(notes) == noted
    for note in notes:
        check_message(note, "255", names[-1], todo=tmp_path / "classes.csv")
        if 0 not in values:
            continue
        later = len(names) - 1
        file = tmp_path / "classes.csv"
        lines = [line for line in file.read_text().splitlines() if line[:3] != "255"]
        file.write_text("\n".join([*lines, f"{later},{names[-1]}", "255,,"]))
        classes, notes = choose(tmp_path, (*values, later), list(names))
        assert classes.names == list(names) and not notes
        assert classes.numbers["255"] == 255 and classes.numbers[str(later)] == later


def test_a_new_value_gets_a_name_that_no_class_has(tmp_path):
    choose(tmp_path, (7, 9, 11), ["class_3", "class_1", "class_4"])
    classes, _ = choose(tmp_path, (7, 9, 11, 20, 30))
    assert classes.names == ["class_3", "class_1", "class_4", "class_5", "class_6"]


def test_names_wait_for_their_values(tmp_path):
    for values in ((0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3, 4)):
        classes, notes = choose(tmp_path, values, [*"abcde"])
        assert classes.names == [*"abcde"] and not notes
        assert [classes.numbers[str(value)] for value in values] == [*values]


def lab_of(palette) -> np.ndarray:
    colors = np.array([*palette, [255, 255, 255]], np.float32) / 255  # and of ignored pixels
    return cv2.cvtColor(colors[None], cv2.COLOR_RGB2LAB)[0]


@pytest.mark.parametrize(
    ("count", "least"), [(2, 40), (8, 26), (11, 26), (20, 26), (105, 15), (255, 8)]
)
@pytest.mark.parametrize("own", [{}, {0: "#0000FF", 2: "#e69f00"}])
def test_people_can_tell_colors_of_classes_apart(count, least, own):
    """Also from the user's; 2.3 is a difference that is just seen."""
    rows = [Row(str(i), f"class_{i}", own.get(i, "")) for i in range(count)]
    classes = Classes(rows)
    lab = lab_of(classes.palette)
    distance = np.linalg.norm(lab[:, None] - lab, axis=2)
    assert distance[~np.eye(len(lab), dtype=bool)].min() > least
    for i, color in own.items():
        assert i >= count or classes.rows[i].color == color
    assert Classes(classes.rows).palette == classes.palette
