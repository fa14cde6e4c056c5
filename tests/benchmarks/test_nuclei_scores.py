"""Scores of nuclei by hand."""

import numpy as np
import pytest

from benchmarks.nuclei_scores import Scores, kind_of


def test_objects_and_classes_of_an_image():
    """Of three nuclei one is found, one is too small in the prediction, and one is missed."""
    nuclei = np.zeros((10, 20), np.uint16)
    nuclei[0:4, 0:4], nuclei[0:4, 8:12], nuclei[6:8, 0:2] = 1, 2, 3
    labels = (nuclei > 0).astype(np.int64)
    predicted = np.zeros_like(labels)
    predicted[0:4, 0:3] = 1  # 12 of 16 pixels
    predicted[0:2, 8:12] = 1  # 8 of 16 pixels: the IoU is not above 0.5
    predicted[9, 19] = 2
    scores = Scores()
    scores.add(predicted, labels, nuclei)
    numbers = scores.numbers()
    assert (numbers["images"], numbers["nuclei"]) == (1, 3)
    assert numbers["precision"] == pytest.approx(50)
    assert numbers["recall"] == pytest.approx(100 / 3)
    assert numbers["F1"] == pytest.approx(40)
    assert numbers["count error"] == pytest.approx(100 / 3)
    assert numbers["nucleus"] == pytest.approx(100 * 20 / 36)
    assert numbers["border"] == 0
    assert numbers["nucleus or border"] == pytest.approx(100 * 20 / 37)
    assert numbers["pixel accuracy"] == pytest.approx(100 * 183 / 200)


def test_kinds_by_color_and_brightness():
    gray = np.full((4, 4, 3), 20, np.uint8)
    assert kind_of(gray) == "fluorescence" and kind_of(gray + 200) == "bright field"
    assert kind_of(gray + np.array([0, 60, 100], np.uint8)) == "stained tissue"
