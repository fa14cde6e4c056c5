import pytest

from mmseg_ext.own_dataset.classes import assign_classes, update_classes


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


@pytest.mark.parametrize("values", [(0, 1, 2), (0, 10, 20), (0, 1)])
def test_names_of_classes_can_be_ignored(values):
    """The values have the order of --classes. A second run can ignore a class that stays."""
    labels, names = {value: str(value) for value in values}, ["void", "cat", "dog"]
    zero, *others = labels.values()
    found = {zero: 255} | {text: i for i, text in enumerate(others)}
    assert update_classes(None, labels, names, ["void"])[:2] == (names[1:], found)
    before = {"classes": names[1:], "labels": found}
    assert update_classes(before, labels, names, ["void"])[:2] == (names[1:], found)
    before = {"classes": names, "labels": {text: i for i, text in enumerate(labels.values())}}
    classes, of_text, _ = update_classes(before, labels, names, ["void"])
    assert (classes, of_text) == (names, before["labels"] | {zero: 255})
    with pytest.raises(ValueError, match="--ignore sky: "):
        update_classes(None, labels, names, ["sky"])


@pytest.mark.parametrize(
    ("labels", "names", "ignored", "classes", "found"),
    [
        ({0: "0", 255: "255"}, None, [], "ab", {"0": 0, "1": 1, "255": 255}),  # of 0, 1, 255
        ({0: "0", 1: "1", 2: "2"}, None, [], ["a", "b", "class_2"], {"0": 0, "1": 1, "2": 2}),
        ({0: "0", 1: "1"}, ["b", "a"], [], "ba", {"0": 0, "1": 1}),
        ({0: "0", 3: "3"}, ["a", "c"], [], "abc", {"0": 0, "1": 1, "3": 2}),
        ({0: "0", 3: "3"}, ["a", "b"], [], "ab", {"0": 0, "1": 1, "3": 1}),
        ({0: "0", 1: "1", 9: "9"}, None, ["9"], "ab", {"0": 0, "1": 1, "9": 255}),
        ({0: "0", 1: "1"}, ["a", "b", "c"], [], "abc", {"0": 0, "1": 1}),
    ],
)
def test_labels_keep_their_classes(labels, names, ignored, classes, found):
    before = {"classes": ["a", "b"], "labels": {"0": 0, "1": 1, "255": 255}}
    updated, mapping, _ = update_classes(before, labels, names, ignored)
    assert updated == list(classes) and mapping == {"255": 255} | found
    own = {"classes": ["background", "cat"], "labels": {"background": 0, "cat": 1}}
    named = update_classes(own, {0: "background", 1: "ant"}, ["ant", "cat"])
    assert named[:2] == (["background", "cat", "ant"], {"background": 0, "cat": 1, "ant": 2})
    with pytest.raises(ValueError, match="has the values background, cat, but"):
        update_classes(own, labels)


@pytest.mark.parametrize(
    ("values", "noted"),
    [((0, 5, 18, 255), True), ((0, 1, 255), False), ((0, 127, 255), False), ((0, 255), False)],
)
def test_255_far_from_other_values_is_a_note(values, noted):
    """As in a part of VOC's classes: it is perhaps ignored."""
    _, mapping, notes = update_classes(None, {value: str(value) for value in values})
    assert noted == any("--ignore 255" in note for note in notes)
    assert mapping["255"] == (255 if values == (0, 1, 255) else len(values) - 1)
