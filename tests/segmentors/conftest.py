"""Strips of few rows, so every image has several."""

import pytest


@pytest.fixture(autouse=True)
def _short_strips(monkeypatch):
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", 10_000)
