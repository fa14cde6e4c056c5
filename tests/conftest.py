"""Shared setup: the registry's scope, one seed per test, and a separate logger for each run."""

import gc
import itertools
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from yapf.yapflib import yapf_api

import mmseg_ext
from mmseg_ext.environment import stack_problem
from tests.configs import unformatted

if stack_problem() is not None:  # mmsegmentation 1.2.2 without mmcv's compiled operators
    mmseg_ext.use_operators_in_pytorch()

from mmseg.visualization import SegLocalVisualizer

# These files train, export or start processes; `make test-fast` runs the others.
SLOW = (
    "durable/test_writing.py",
    "commands/test_bands.py",
    "commands/test_export.py",
    "commands/test_tools.py",
    "detection/test_configs.py",
    "detection/test_training.py",
    "durable/test_crash_points.py",
    "engine/test_golden_losses.py",
    "engine/test_build.py",
    "durable/test_restart.py",
    "durable/test_resume.py",
    "durable/test_signals.py",
    "durable/test_work_dirs.py",
    "test_configs.py",
    "test_contributing.py",
    "test_devices.py",
    "test_guides.py",
    "test_notebook.py",
    "test_packaging.py",
    "test_registration.py",
)


LONGEST = ("durable/test_crash_points.py", "durable/test_restart.py", "commands/test_export.py")

# Slow tests of the backbones and decode heads; their other tests are fast.
SLOW_NAMES = ("export", "compile", "parity", "costs", "traces", "parameters", "checkpointing")
SLOW_NAMES += ("another_depth",)


def pytest_configure():
    """Collect garbage rarely: by default it is a tenth of the time of a test that compiles."""
    gc.set_threshold(100_000, 50, 50)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    slow = [here / name for name in SLOW]
    for item in items:
        is_model = item.path.parent.name in ("backbones", "decode_heads")
        is_slow_name = is_model and any(name in item.name for name in SLOW_NAMES)
        if is_slow_name or any(item.path.is_relative_to(path) for path in slow):
            item.add_marker("slow")
    # The longest tests come first, so no worker ends with some of them while the other is idle.
    longest = [here / name for name in LONGEST]
    items.sort(key=lambda item: item.path not in longest)


def pytest_collection_finish():
    """Exclude imported modules from later passes of the garbage collector."""
    gc.freeze()
    _measured["seconds"] = processor_seconds()


_measured = {"seconds": 0.0}  # of this process and its children, at the end of the last phase


def processor_seconds() -> float:
    """Return the processor time of this process and of the ended processes that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Add to each report the processor time of its phase: other processes do not change it."""
    report = yield
    now = processor_seconds()
    report.processor_seconds = now - _measured["seconds"]
    _measured["seconds"] = now
    return report


def pytest_terminal_summary(terminalreporter):
    """Print how long the tests of each folder took, together in all workers."""
    durations, seconds = Counter(), Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "processor_seconds"):
                folder = "/".join(report.nodeid.split("/")[:2]).partition("::")[0]
                durations[folder] += report.duration
                seconds[folder] += report.processor_seconds
    if not durations:  # only collected
        return
    terminalreporter.section("seconds by folder (of processor time)")
    terminalreporter.line(f"{durations.total():7.1f} ({seconds.total():.1f})  all tests")
    for folder, duration in durations.most_common():
        terminalreporter.line(f"{duration:7.1f} ({seconds[folder]:.1f})  {folder}")


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    """Exclude what earlier files left: mmengine collects garbage for every dataset it builds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _other_folder(tmp_path_factory):
    """Run the tests in an empty folder: they do not depend on the one in which pytest starts.

    New processes find this `tests`, not a package of that name that mmsegmentation installs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        patch.chdir(tmp_path_factory.mktemp("working_directory"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _prepared_stack():
    """Register every module, leave the configs of runs unformatted, and number the runs.

    Two runs that start within one second would share mmengine's logger and its file. No test sees
    whether a file is on the disk, so none waits for it.
    """
    mmseg_ext.register_all_modules()
    set_up, numbers = Runner.setup_env, itertools.count()

    def set_up_numbered(self, *args):
        set_up(self, *args)
        self._timestamp += f"_{next(numbers):05d}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(yapf_api, "FormatCode", unformatted)
        patch.setattr(Runner, "setup_env", set_up_numbered)
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_instances():
    """Remove mmengine's loggers, histories, visualizers and scope, which it keeps by name.

    Otherwise a run would log into an earlier run's file, and a segmentor would not be found after a
    detector. Fixtures of a wider scope create instances before the test, and the test its own.
    """
    _forget_instances()
    yield
    _forget_instances()


def _forget_instances():
    for kind in (SegLocalVisualizer, MMLogger, MessageHub, DefaultScope):
        kind._instance_dict.clear()
    DefaultScope.get_instance("mmseg", scope_name="mmseg")
