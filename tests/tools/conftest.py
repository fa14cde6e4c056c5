"""Runs in one process: each test has visualizers of its own, as a process of its own would."""

import pytest
from mmseg.visualization import SegLocalVisualizer


@pytest.fixture(autouse=True)
def _own_visualizers():
    """mmengine keeps visualizers by name, so that a later run would log into an earlier one's."""
    SegLocalVisualizer._instance_dict.clear()
