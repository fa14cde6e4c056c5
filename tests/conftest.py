"""Shared set-up: the registry's scope, one seed per test, and runs that share no logger."""

import gc
import time
from pathlib import Path

import pytest
import torch
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from mmseg.visualization import SegLocalVisualizer
from yapf.yapflib import yapf_api

from mmseg_ext import register_all_modules
from tests.configs import unformatted

# What trains, exports or starts processes; the rest is `make test-fast`.
SLOW = (
    "backbones",
    "benchmarks",
    "checkpoint/test_writing.py",
    "commands/test_demo.py",
    "commands/test_doctor.py",
    "commands/test_export.py",
    "commands/test_image_demo.py",
    "commands/test_tools.py",
    "detection",
    "engine",
    "test_configs.py",
    "test_guides.py",
    "test_packaging.py",
    "test_registration.py",
)


def pytest_collection_modifyitems(items):
    slow = [Path(__file__).parent / name for name in SLOW]
    for item in items:
        if any(item.path.is_relative_to(path) for path in slow):
            item.add_marker("slow")


def pytest_collection_finish():
    """What is imported stays: the collections of every run need not look through it again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _registered():
    register_all_modules()


@pytest.fixture(scope="session", autouse=True)
def _unformatted_configs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yapf_api, "FormatCode", unformatted)
        yield


@pytest.fixture(scope="session", autouse=True)
def _seconds_of_their_own():
    """Two runs of one second would share mmengine's logger and its file: the later waits."""
    set_up, last = Runner.setup_env, [""]

    def waiting(self, *args):
        while time.strftime("%Y%m%d_%H%M%S") == last[0]:
            time.sleep(0.05)
        set_up(self, *args)
        last[0] = time.strftime("%Y%m%d_%H%M%S")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "setup_env", waiting)
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_instances():
    """mmengine keeps loggers, histories and visualizers by name, and names a run after its config
    and the second of its start: a later run would log into an earlier's.

    And the scope of the last run, in which a segmentor is not found after a detector. All are
    cleared before the test, for what its wider fixtures left, and after it, for the next ones'.
    """
    _forget_instances()
    yield
    _forget_instances()


def _forget_instances():
    SegLocalVisualizer._instance_dict.clear()
    MMLogger._instance_dict.clear()
    MessageHub._instance_dict.clear()
    DefaultScope._instance_dict.clear()
    DefaultScope.get_instance("mmseg", scope_name="mmseg")
