"""Overlays: outlines, names and legends."""

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.inference.segmentation import Segmentation, with_legend

CLASSES = ("background", "cell", "border", "a class with a long name")
PALETTE = np.array([[9, 9, 9], [0, 200, 0], [200, 0, 0], [0, 0, 200]], np.uint8)
GRAY = 100


def segmentation(labels: np.ndarray) -> Segmentation:
    image = np.full((*labels.shape, 3), GRAY, np.uint8)
    return Segmentation(labels, CLASSES, PALETTE, image)


@pytest.fixture
def touching() -> Segmentation:
    """Two classes that touch, with background and border around them."""
    labels = np.zeros((40, 60), np.uint8)
    labels[5:25, 5:25], labels[5:25, 25:45] = 1, 3
    labels[30:35, 5:45] = 2
    return segmentation(labels)


def test_an_impossible_opacity(touching):
    with pytest.raises(ValueError, match="opacity=2: choose"):
        touching.overlay(2)


@pytest.mark.parametrize("opacity", [0, 0.25, 0.5, 1])
def test_objects_have_lines_in_their_color(touching, opacity):
    picture = np.asarray(touching.overlay(opacity)).astype(int)
    assert picture.shape == touching.image.shape
    for index, columns in ((1, (5, 25)), (3, (25, 45))):
        inside = picture[6:24, columns[0] + 1 : columns[1] - 1]
        assert np.abs(inside - (GRAY * (1 - opacity) + PALETTE[index] * opacity)).max() <= 1
        edges = [picture[row, slice(*columns)] for row in (5, 24)]
        edges += [picture[5:25, columns[0]], picture[5:25, columns[1] - 1]]
        assert all((edge == PALETTE[index]).all() for edge in edges)
    hidden = np.isin(touching.labels, (0, 2))
    assert (picture[hidden] == GRAY).all() and (touching.image == GRAY).all()


@pytest.mark.parametrize(("side", "width"), [(100, 1), (1200, 2), (1800, 3), (3000, 3)])
def test_lines_are_as_wide_as_the_image_is_large(side, width):
    labels = np.zeros((side, side + 1), np.uint16)
    labels[20:60, 20:60] = 1
    picture = np.asarray(segmentation(labels).overlay(0))
    assert ((picture[40, :, 1] == 200).nonzero()[0]).tolist() == [
        *range(20, 20 + width),
        *range(60 - width, 60),
    ]


def test_the_legend_counts_the_objects_that_are_given(touching):
    objects = {name: touching.objects(name) for name in CLASSES[1:]}
    plain = np.asarray(touching.overlay())
    picture = np.asarray(touching.overlay(objects=objects))
    height, width = touching.labels.shape
    assert (picture[:height, :width] == plain).all()
    legend = picture[height:]
    for name, color in zip(CLASSES, PALETTE, strict=True):
        shown = (legend == color).all(2).sum()
        assert (shown > 50) == (name not in ("background", "border")), name
    texts = {"cell": "cell: 1 (16.7 %)", CLASSES[3]: f"{CLASSES[3]}: 1 (16.7 %)"}  # 400 of 2400
    colors = dict(zip(CLASSES, PALETTE, strict=True))
    assert (picture == np.asarray(with_legend(Image.fromarray(plain), colors, texts))).all()
    objects["cell"] = []
    fewer = np.asarray(touching.overlay(objects=objects))[height:]
    assert not (fewer == PALETTE[1]).all(2).any()
    none = touching.overlay(objects={"cell": []})
    assert none.size == (width, height)
    assert touching.overlay(objects=objects, legend=False).size == (width, height)


@pytest.mark.parametrize("shade", [0, 255])
@pytest.mark.parametrize("corner", [(0, 0), (0, 110), (70, 0), (70, 110), (30, 50)])
def test_names_stay_inside_and_are_readable(corner, shade):
    """White text with a dark line around it; an object at an edge has a complete name."""
    labels = np.zeros((80, 120), np.uint8)
    labels[corner[0] : corner[0] + 10, corner[1] : corner[1] + 10] = 1
    result = segmentation(labels)
    result.image[:] = shade
    objects = {"cell": result.objects("cell")}
    with_name = np.asarray(result.overlay(0, objects, names=True, legend=False)).astype(int)
    changed = (with_name != np.asarray(result.overlay(0))).any(2)
    rows, columns = changed.nonzero()
    assert np.ptp(rows) >= 6 and np.ptp(columns) >= 15
    text = with_name[changed]
    assert (text.min(1) > 200).any() or shade == 255
    assert (text.max(1) < 50).any() or shade == 0
    middle = labels[:40].copy()
    middle[:] = 1
    reference = segmentation(middle)
    reference.image[:] = shade
    named = reference.overlay(0, {"cell": reference.objects("cell")}, names=True, legend=False)
    complete = (np.asarray(named) != np.asarray(reference.overlay(0))).any(2).sum()
    assert abs(int(changed.sum()) - int(complete)) <= 40  # the lines' pixels below the text


def test_a_name_is_in_the_middle_of_the_widest_place():
    """Of an object like a pan: in the pan, and not in the middle of its box."""
    labels = np.zeros((120, 300), np.uint8)
    labels[10:110, 10:110], labels[55:65, 110:290] = 1, 1
    result = segmentation(labels)
    picture = result.overlay(0, {"cell": result.objects("cell")}, names=True, legend=False)
    changed = (np.asarray(picture) != np.asarray(result.overlay(0))).any(2)
    rows, columns = changed.nonzero()
    middle = (rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2
    assert np.abs(np.subtract(middle, (59.5, 59.5))).max() <= 2


def test_only_the_drawn_classes_have_colors(touching):
    objects = {name: touching.objects(name) for name in CLASSES}
    picture = np.asarray(touching.overlay(1, objects, drawn=["border", "cell"]))[:40, :60]
    assert (picture[touching.labels == 1] == PALETTE[1]).all()
    assert (picture[touching.labels == 2] == PALETTE[2]).all()
    assert (picture[np.isin(touching.labels, (0, 3))] == GRAY).all()


def test_names_do_not_cover_each_other():
    labels = np.zeros((30, 200), np.uint8)
    labels[5:25, 10:40], labels[8:20, 42:50], labels[5:25, 150:180] = 1, 1, 1
    result = segmentation(labels)
    objects = {"cell": result.objects("cell")}
    picture = np.asarray(result.overlay(0, objects, names=True, legend=False)).astype(int)
    changed = (picture != np.asarray(result.overlay(0))).any((0, 2))
    starts = (np.diff(changed.astype(int)) == 1).sum()
    assert changed[:60].any() and changed[140:].any()
    assert not changed[60:140].any() and starts < 12
