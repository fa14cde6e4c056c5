"""A training of so many minutes: its iterations are measured, recorded and kept."""

import json
from unittest.mock import Mock

import pytest

import mmseg_ext
from mmseg_ext.checkpoint import read_state_dict
from mmseg_ext.engine import duration
from mmseg_ext.errors import LaunchError
from tests.engine.run_hooks import Crash
from tests.engine.runs import log_text, write_config
from tests.engine.states import assert_same
from tests.messages import raises_message, resumed_iterations

VALIDATED = "train_cfg['val_interval'] = 6\n"


@pytest.fixture
def _clock(monkeypatch):
    """An iteration takes 0.25 seconds, and a validation of eight images 4 seconds."""
    monkeypatch.setattr(duration, "_TRIED", 3)
    monkeypatch.setattr(duration._Trial, "seconds", 0.25)
    monkeypatch.setattr(duration, "_validation_seconds", lambda runner: 4.0)


@pytest.mark.usefixtures("_clock")
def test_the_number_is_recorded_and_kept_by_a_resume(tmp_path, monkeypatch):
    """In 10 seconds with two validations: 8 iterations; schedules and intervals fit them."""
    crash = "custom_hooks = [dict(type='CrashAt', iteration=6)]\n"
    config = write_config(tmp_path, VALIDATED)
    work = tmp_path / "work"
    with pytest.raises(Crash):
        mmseg_ext.train(write_config(tmp_path, VALIDATED + crash, "cut.py"), work, minutes=1 / 6)
    (record,) = work.glob("2*/run.json")
    assert json.loads(record.read_text())["iterations"] == 8
    text = (record.parent / "config.py").read_text()
    assert "max_iters=8" in text and "val_interval=4" in text and "end=8" in text
    monkeypatch.setattr(mmseg_ext.runs, "iterations_in", None)  # nothing is measured again
    again = write_config(tmp_path, VALIDATED + crash.replace("6", "7"), "again.py")
    with pytest.raises(Crash):
        mmseg_ext.train(again, work, minutes=5, resume=True)
    # A restart by torchrun or Slurm has no flag, and an option can set the folder.
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    mmseg_ext.train(config, minutes=1, options={"work_dir": str(work)})
    assert resumed_iterations(log_text(work)) == [4, 6]
    assert (work / "iter_8.pth").is_file() and not (work / "iter_9.pth").exists()
    straight = tmp_path / "straight"
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    mmseg_ext.train(config, straight, iterations=8)
    weights = [read_state_dict(one / "iter_8.pth") for one in (work, straight)]
    assert_same(*weights, "state_dict")


def test_the_speed_is_that_of_a_few_iterations(tmp_path, monkeypatch, capsys):
    """The trial leaves nothing in the work directory, and the config is loaded once."""
    monkeypatch.setattr(duration, "_TRIED", 6)
    config = write_config(tmp_path, VALIDATED)
    seen = []
    monkeypatch.setattr(mmseg_ext.runs, "iterations_in", lambda *a: seen.append(find(*a)) or 2)
    find = duration.iterations_in
    mmseg_ext.train(config, tmp_path / "work", minutes=10, options={"no_key": 1})
    assert seen[0] > 10
    assert capsys.readouterr().err.count("'no_key' has no effect") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"data", "tiny.py", "work"}
    assert len(list((tmp_path / "work").glob("2*"))) == 1


def test_all_processes_stop_at_the_same_iteration(monkeypatch):
    """By the clock of the first one; another one would wait for its gradients."""
    monkeypatch.setattr(duration, "on_rank_zero", lambda action: True)
    trial = duration._Trial()
    for _ in range(4):
        trial.after_train_iter(None, 0)
    with pytest.raises(duration._Measured):
        trial.after_train_iter(None, 0)


@pytest.mark.parametrize("batches", [1, 2, 20])
def test_the_time_of_a_validation_is_that_of_all_its_batches(monkeypatch, batches):
    """The first one takes 9 seconds and the others 2."""
    clock = [0.0]
    monkeypatch.setattr(duration.time, "perf_counter", lambda: clock[0])
    model = Mock()
    model.val_step = lambda batch: clock.append(clock.pop() + (2 if batch else 9))
    found = duration._validation_seconds(Mock(val_dataloader=[*range(batches)], model=model))
    assert found == (9 if batches == 1 else 2 * batches)


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("minutes", [0.1, 0, -1])
def test_too_short_a_time_is_refused(tmp_path, minutes):
    """Two validations take 8 seconds."""
    with raises_message(LaunchError, where=f"--minutes {minutes:g}: "):
        mmseg_ext.train(write_config(tmp_path, VALIDATED), tmp_path / "work", minutes=minutes)


@pytest.mark.usefixtures("_clock")
def test_a_changed_config_keeps_the_number_of_its_run(tmp_path, monkeypatch):
    """The length is the run's, with the schedule of the config as it is now."""
    crash = "custom_hooks = [dict(type='CrashAt', iteration=6)]\n"
    config, work = write_config(tmp_path, VALIDATED + crash), tmp_path / "work"
    with pytest.raises(Crash):
        mmseg_ext.train(config, work, minutes=1 / 6)
    monkeypatch.setattr(mmseg_ext.runs, "iterations_in", None)
    longer = "train_cfg['max_iters'] = 48\nparam_scheduler[0]['end'] = 48\n"
    changed = write_config(tmp_path, VALIDATED + longer, "changed.py")
    run = mmseg_ext.train(changed, work, minutes=1 / 6, resume=True)
    assert (work / "iter_8.pth").is_file() and not (work / "iter_9.pth").exists()
    assert resumed_iterations(log_text(work)) == [4]
    text = run.config.read_text()
    assert "max_iters=8" in text and "end=8" in text and "val_interval=1" in text
