"""Choosing the splits, and finding copies of a photo."""

from collections import Counter
from itertools import pairwise

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmseg_ext.own_dataset.copies import find_copies, small_version
from mmseg_ext.own_dataset.groups import connect, find_groups
from mmseg_ext.own_dataset.splits import choose, choose_fold
from tests.messages import raises_message

SHARES = st.sampled_from([{"val": 0.2}, {"val": 0.5}, {"test": 0.1, "val": 0.3}])


def is_share(count: int, share: float, names: int) -> bool:
    return count == max(1, round(share * names))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abc")), min_size=8, max_size=40), SHARES, st.data())
def test_shares_are_exact_and_earlier_choices_stay(labels, shares, data):
    """Also when names are added; the order of the names does not count."""
    names = [str(i) for i in range(len(labels))]
    of = dict(zip(names, labels, strict=True))
    first = names[: data.draw(st.integers(6, len(names)))]
    before = choose(first, of, shares, {})
    assert before == choose(first[::-1], of, shares, {})
    after = choose(names, of, shares, before)
    assert before.items() <= after.items()
    for chosen in (before, after):
        counts = Counter(chosen.values())
        assert all(is_share(counts[s], share, len(chosen)) for s, share in shares.items())
        assert counts["train"] == len(chosen) - sum(counts[s] for s in shares)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 9), min_size=2, max_size=4), st.integers(0, 99))
def test_each_label_is_in_both_splits(counts, seed):
    """If two names have it, and the share has room for all labels."""
    of = {f"{seed} {i} {k}": {str(i)} for i, count in enumerate(counts) for k in range(count)}
    found = choose([*of], of, {"val": 0.5}, {})
    for label in map(str, range(len(counts))):
        assert {found[name] for name in of if label in of[name]} == {"train", "val"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=4, max_size=40), SHARES)
def test_groups_stay_together(groups, shares):
    """A split has its share or less; groups that all exceed it give it the smallest one."""
    of = {str(i): f"group {group}" for i, group in enumerate(groups)}
    sizes = Counter(of.values())
    if len(sizes) <= len(shares):
        return
    found = choose([*of], {name: {"a"} for name in of}, shares, {}, of)
    splits = {group: {found[n] for n in of if of[n] == group} for group in sizes}
    assert all(len(own) == 1 for own in splits.values())
    counts = Counter(found.values())
    for split, share in shares.items():
        assert 1 <= counts[split] <= max(round(share * len(of)), *sizes.values(), 1)
    # A new name goes where its group is.
    more = choose(
        [*of, "new"], {name: {"a"} for name in [*of, "new"]}, shares, found, of | {"new": of["0"]}
    )
    assert more["new"] == found["0"]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.data())
def test_folds_divide_the_names(count, data):
    """Into parts of nearly equal size with each label in all parts, if names are no groups."""
    labels = data.draw(st.lists(st.sampled_from("aab"), min_size=count, max_size=40))
    names = [str(i) for i in range(len(labels))]
    of = {name: {label} for name, label in zip(names, labels, strict=True)}
    parts = []
    for number in range(1, count + 1):
        chosen = choose_fold(names[:: (-1) ** number], of, 0, {}, {}, f"{number}/{count}")
        parts.append({name for name in names if chosen[name] == "val"})
    assert sorted(name for part in parts for name in part) == sorted(names)
    sizes = list(map(len, parts))
    assert max(sizes) - min(sizes) <= 1
    for label in set(labels):
        own = [sum(label in of[name] for name in part) for part in parts]
        assert max(own) - min(own) <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.data())
def test_folds_keep_groups_and_earlier_choices(count, data):
    """Also a test set and new names are the same in the projects of all folds."""
    groups = data.draw(st.lists(st.integers(0, 12), min_size=24, max_size=40))
    if len(set(groups)) < 2 * count:
        return
    of = {str(i): f"group {group}" for i, group in enumerate(groups)}
    labels = {name: {"a"} for name in of}
    first = [name for name in of if of[name] != "group 0"]
    parts, tests = [], []
    for number in range(1, count + 1):
        fold = f"{number}/{count}"
        before = choose_fold(first, labels, 0.1, {}, of, fold)
        after = choose_fold([*of], labels, 0.1, before, of, fold)
        assert before.items() <= after.items()
        parts.append({name for name in of if after[name] == "val"})
        tests.append({name for name in of if after[name] == "test"})
        for group in set(of.values()):
            assert len({after[name] for name in of if of[name] == group}) == 1
    assert (
        sorted([*set().union(*parts), *tests[0]]) == sorted(of)
        and len(set(map(frozenset, tests))) == 1
    )
    assert sum(map(len, parts)) + len(tests[0]) == len(of) and all(parts)


def test_more_folds_than_groups():
    names, groups = [*"abcd"], dict.fromkeys("abc", "g")
    with raises_message(ValueError, "3/3", 2, where="--fold"):
        choose_fold(names, {name: set() for name in names}, 0, {}, groups, "3/3")


def test_parts_of_names():
    names = ["scene1_1_left", "scene1_2_left", "scene10_1", "other"]
    assert [*find_groups(names, "scene*_")] == [(0, [0, 1]), (2, [2])]
    assert [*find_groups(["a/1", "a/2", "b/1"], "*/")] == [(0, [0, 1]), (2, [2])]
    assert connect(4, find_groups(names, "scene*_")).tolist() == [0, 0, 2, 3]
    names = ["scene1", "scene1_1", "scene2_1", "scene3"]
    assert [*find_groups(names, "scene*_")] == [(1, [1, 0]), (2, [2])]
    assert connect(5, [(0, [4]), (1, [2]), (2, [4])]).tolist() == [0, 0, 0, 3, 0]
    for pattern, message in (("x", "one \\*"), ("*_*", "one \\*"), ("y*", "fits no name")):
        with pytest.raises(ValueError, match=message):
            list(find_groups(names, pattern))
    with pytest.raises(ValueError, match="'a' in all names"):
        list(find_groups(["a_1", "a_2"], "*_"))


def test_copies_are_found_in_any_position():
    """Flipped, turned, smaller and noisy ones; not a changed one, and not flat images."""
    random = np.random.RandomState(0)
    images = [
        random.randint(0, 256, (12, 9, 3), np.uint8).repeat(8, 0).repeat(8, 1) for _ in range(9)
    ]
    photo = images[3]
    images += [photo[:, ::-1], np.rot90(photo), np.rot90(photo[::-1], 3)]
    images.append(cv2.resize(photo, (36, 48), interpolation=cv2.INTER_AREA))
    images.append(np.clip(photo + random.normal(0, 9, photo.shape), 0, 255).astype(np.uint8))
    changed = photo.copy()
    changed[:20, :20] = 255
    images += [changed, *[np.full((60, 90, 3), value, np.uint8) for value in (255, 255)]]
    small = [small_version(image) for image in images]
    copies = {pair for i, others in find_copies(small) for pair in ((i, j) for j in others)}
    group = [3, *range(9, 14)]
    assert copies == {(i, j) for i in group for j in group if i < j}
    assert not list(find_copies([]))


def texture(seed: int, width: int = 240, height: int = 180) -> np.ndarray:
    """Return colors that change slowly, as in a photo."""
    small = np.random.RandomState(seed).randint(30, 226, (6, 8, 3)).astype(np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def padded(image: np.ndarray, sides: tuple[int, int, int, int], value: int) -> np.ndarray:
    """Return an image with flat borders at the top, bottom, left and right."""
    return cv2.copyMakeBorder(image, *sides, cv2.BORDER_CONSTANT, value=(value,) * 3)


@pytest.mark.parametrize("value", [0, 114, 255])
def test_copies_are_found_inside_of_borders(value):
    """Photos were flipped or turned before they were padded, made smaller, or saved as JPEG."""
    photos = [texture(i) for i in range(20)]
    copies = [photos[0], photos[1][::-1], np.rot90(photos[2]), photos[3][:, ::-1], photos[4]]
    small = [small_version(photo) for photo in photos]
    square = [padded(photo, (0, 60, 0, 0), value) for photo in photos]
    small += [small_version(image) for image in square]
    below = [padded(copy, (0, 60, 0, 0), value) for copy in copies]
    below[1] = cv2.resize(below[1], (112, 112), interpolation=cv2.INTER_AREA)
    below[3] = cv2.imdecode(cv2.imencode(".jpg", below[3], [cv2.IMWRITE_JPEG_QUALITY, 75])[1], 1)
    below[4] = padded(copies[4], (7, 20, 33, 0), value)
    small += [small_version(image) for image in below]
    groups = connect(len(small), find_copies(small)).tolist()
    assert groups == [*range(20), *range(20), *range(5)]


def test_objects_on_a_flat_background_are_no_copies():
    """Borders end at a straight edge, and what is inside is most of an image."""
    small = []
    for i in range(6):
        disc, line = np.zeros((2, 200, 200, 3), np.uint8)
        cv2.circle(disc, (60 + 13 * i, 70 + 11 * i), 30 + 6 * i, (200, 180, 160), -1)
        line[30 * i :][:20] = texture(0, 200, 20)
        small += [small_version(disc), small_version(line)]
    assert not list(find_copies(small))


def test_frames_with_equal_borders_are_no_copies():
    """Neighbors in time are similar. A padded copy is, too, but has another border."""
    frames = [cv2.addWeighted(texture(0), 1 - i / 25, texture(1), i / 25, 0) for i in range(8)]
    small = [small_version(padded(frame, (6, 6, 0, 0), 128)) for frame in frames]
    for frame, other in pairwise(small):
        assert 0.05 < np.linalg.norm(frame[1] - other[1]) < 0.1
    assert not list(find_copies(small))


@pytest.mark.parametrize("missing", [-9999.0, np.nan])
def test_pixels_without_data_make_no_copies(missing):
    images = [np.random.RandomState(i).rand(64, 80, 3) for i in (0, 1, 0)]
    for image in images:
        image[:20] = missing
    small = [small_version(image, missing) for image in images]
    assert dict(find_copies(small)) == {0: [2]}
