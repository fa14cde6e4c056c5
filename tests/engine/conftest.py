"""Runs in one process: each test has visualizers and loggers of its own, as a process would."""

import pytest
from mmengine.logging import MMLogger
from mmseg.visualization import SegLocalVisualizer


@pytest.fixture(autouse=True)
def _own_visualizers():
    """mmengine keeps both by name, so that a later run would log into an earlier one's."""
    SegLocalVisualizer._instance_dict.clear()
    MMLogger._instance_dict.clear()
