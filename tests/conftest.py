"""Shared set-up: the registry's scope, one seed per test, and runs that share no logger."""

import pytest
import torch
from mmengine.logging import MMLogger
from mmseg.visualization import SegLocalVisualizer

from mmseg_ext import register_all_modules


@pytest.fixture(scope="session", autouse=True)
def _registered():
    register_all_modules()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_loggers_and_visualizers():
    """mmengine keeps both by name for the process, so that a later run would log into an earlier's.

    Cleared before the test, for what its wider fixtures left, and after it, for the next ones'.
    """
    _forget_instances()
    yield
    _forget_instances()


def _forget_instances():
    SegLocalVisualizer._instance_dict.clear()
    MMLogger._instance_dict.clear()
