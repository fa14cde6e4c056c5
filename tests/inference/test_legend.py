"""The legend under a segmented picture."""

import numpy as np
import pytest

from mmseg_ext.inference.predictor import Segmentation

CLASSES = ("road", "sky", "nowhere", "a long name", "rare")
PALETTE = np.array([[200, 0, 0], [0, 200, 0], [9, 99, 9], [0, 0, 200], [200, 200, 0]], np.uint8)
BY_AREA = [1, 0, 3, 4]


@pytest.mark.parametrize(
    ("height", "width", "rows"), [(40, 20, 4), (480, 640, 2), (3000, 4000, 2), (100, 2000, 1)]
)
def test_classes_are_listed_by_area_below_the_picture(height, width, rows):
    picture = np.full((height, width, 3), 90, np.uint8)
    labels = np.ones((height, width), np.uint8)
    labels[: height // 4], labels[-height // 8 :], labels[0, :1] = 0, 3, 4
    page = np.asarray(Segmentation(labels, CLASSES, PALETTE, picture).overlay(opacity=0))
    assert (page[:height, :width] == picture).all()
    strip = page[height:]
    side = len(strip) // rows // 2
    assert 12 <= side <= max(12, 0.026 * (height * width) ** 0.5)
    assert (strip[:, -1] == 255).all() and (strip[[0, -1]] == 255).all()
    assert not (strip == PALETTE[2]).all(-1).any()
    places = [np.argwhere((strip == PALETTE[i]).all(-1)) for i in BY_AREA]
    corners = [tuple(place.min(0)) for place in places]
    assert corners == sorted(corners) and len({top for top, _ in corners}) == rows
    for (top, left), place in zip(corners, places, strict=True):
        assert tuple(place.max(0) - (top, left)) == (side - 2, side - 2)  # inside of the border
        end = min([x - 1 for y, x in corners if y == top and x > left] or [strip.shape[1]])
        letters = strip[top : top + side, left + side : end].min(-1) < 100
        columns, lines = (np.flatnonzero(letters.any(axis)) for axis in (0, 1))
        assert abs(lines.mean() / side - 0.5) < 0.15
        assert columns[0] < side and letters[:, : 3 * side].mean() > 0.05
        assert letters.shape[1] - columns[-1] > side // 2  # space before the next square


def test_shares_of_the_pixels(monkeypatch):
    """Known text for known areas; small ones are not rounded to zero."""
    texts, labels = [], np.zeros((100, 100), np.uint8)
    labels[0, :4], labels[1, :5], labels[50:] = 1, 3, 4
    draw = "mmseg_ext.inference.predictor.ImageDraw.ImageDraw.text"
    monkeypatch.setattr(draw, lambda self, place, text, *args, **kwargs: texts.append(text))
    Segmentation(labels, CLASSES, PALETTE, np.zeros((100, 100, 3), np.uint8)).overlay()
    assert texts == ["rare 50.0%", "road 49.9%", "a long name 0.1%", "sky < 0.1%"]
