"""The lines on the terminal during a training."""

import logging
import time
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import LoggerHook

from mmseg_ext.terminal import ProgressHook, validations_left


def run_lines(
    tmp_path, capsys, monkeypatch, seconds: dict[int, float], validations={}, **settings
) -> list[str]:
    """Return what is printed for a run whose iterations end at these seconds.

    A validation takes the seconds in `validations` after an iteration.
    """
    clock = {"now": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clock["now"])
    losses = {"train/loss": SimpleNamespace(mean=lambda count: count / 50)}
    logger = logging.Logger("run")
    logger.addHandler(logging.StreamHandler(open(tmp_path / "terminal", "w")))  # noqa: SIM115
    logger.addHandler(logging.FileHandler(tmp_path / "log"))
    runner = SimpleNamespace(
        iter=min(seconds) - 1,
        message_hub=SimpleNamespace(log_scalars=losses),
        logger=logger,
        **settings,
    )
    hook = ProgressHook()
    hook.before_train(runner)
    for text in ("Iter(train) [ 1/2]  loss: 1", "Saving checkpoint", "Iter(val) [1/1]  mIoU: 2"):
        logger.info(text)
    logger.warning("Iter(train) is slow")
    for done, clock["now"] in seconds.items():
        runner.iter = done - 1
        hook.after_train_iter(runner, 0)
        hook.before_val(runner)
        clock["now"] += validations.get(done, 0)
        hook.after_val(runner)
    hook.after_val_epoch(runner, {"aAcc": 3.0, "mIoU": 12.5})
    return capsys.readouterr().out.splitlines()


def test_lines_of_a_resumed_run(tmp_path, capsys, monkeypatch):
    """Each interval and the last iteration; speed and time left without the first iteration."""
    seconds = {51: 2.0, 52: 2.1, 99: 6.8, 100: 6.9, 101: 7.0, 9350: 1856.8}
    settings = dict(max_iters=9350, hooks=[LoggerHook(interval=100)])
    assert run_lines(tmp_path, capsys, monkeypatch, seconds, **settings) == [
        "  the training takes about 0:15:30, and the time of its validations",
        "  iteration  100/9350  loss 2.000  10 it/s  0:15:25 left",
        "  iteration 9350/9350  loss 2.000  5.01 it/s  0:00:00 left",
        "  validation: aAcc 3, mIoU 12.5",
    ]
    assert (tmp_path / "terminal").read_text() == "Saving checkpoint\nIter(train) is slow\n"
    assert (tmp_path / "log").read_text().count("\n") == 4


def test_the_speed_does_not_count_validations(tmp_path, capsys, monkeypatch):
    """Of 40 seconds after iteration 100."""
    seconds = {51: 2.0, 100: 6.9, 110: 47.9, 200: 56.9}
    settings = dict(max_iters=300, hooks=[LoggerHook(interval=100)])
    lines = run_lines(tmp_path, capsys, monkeypatch, seconds, {100: 40.0}, **settings)
    assert [line.partition("2.000  ")[2] for line in lines[:3]] == [
        "10 it/s  0:00:20 left",
        "10 it/s  0:00:19 left",
        "10 it/s  0:00:10 left",
    ]


def test_the_time_left_counts_validations(tmp_path, capsys, monkeypatch):
    """From the first one on: 5 of 40 seconds are left at iteration 110, one at 280."""
    seconds = {51: 2.0, 100: 6.9, 110: 47.9, 280: 64.9, 300: 66.9}
    loop = SimpleNamespace(val_interval=50, val_begin=1)
    settings = dict(max_iters=310, hooks=[LoggerHook(interval=10)], train_loop=loop, val_loop=loop)
    lines = run_lines(tmp_path, capsys, monkeypatch, seconds, {100: 40.0}, **settings)
    left = [line.rpartition("it/s  ")[2] for line in lines if " left" in line]
    assert "  the validation took 0:00:40; 5 more follow" in lines
    assert left[1] == "0:03:40 left"  # 200 iterations of a tenth of a second, and 200
    advice = "  validations take 89% of the time; train_cfg.val_interval=310 makes it 56%"
    assert [line for line in lines if "of the time" in line] == [advice]  # 5 of 45 seconds train


@pytest.mark.parametrize(
    ("done", "begin", "expected"),
    [(0, 1, 7), (50, 1, 6), (99, 1, 6), (300, 1, 1), (310, 1, 0), (0, 200, 4), (0, 400, 0)],
)
def test_validations_left(done, begin, expected):
    """At 50, 100, ... 300, and at the end, 310."""
    loop = SimpleNamespace(val_interval=50, val_begin=begin)
    runner = SimpleNamespace(train_loop=loop, val_loop=loop, max_iters=310)
    assert validations_left(runner, done) == expected


def test_a_long_validation_has_lines(capsys, monkeypatch):
    """Ten seconds after its start, and then every thirty."""
    clock = {"now": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clock["now"])
    runner, hook = SimpleNamespace(val_dataloader=range(20)), ProgressHook()
    hook.before_val(runner)
    for i in range(20):
        clock["now"] += 4
        hook.after_val_iter(runner, i)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"  validating: {done}/20" for done in (3, 11, 19)]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_slow_training_has_lines_by_time(tmp_path, capsys, monkeypatch, on_gpu):
    """Ten seconds after the start and then every thirty; no loss that is still on a GPU."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_gpu)
    seconds = {done: 20.0 + 4 * done for done in range(1, 20)}
    settings = dict(max_iters=400, hooks=[LoggerHook(interval=50)])
    lines = run_lines(tmp_path, capsys, monkeypatch, seconds, **settings)
    loss = "" if on_gpu else "  loss 1.000"
    assert lines == [
        f"  iteration   1/400{loss}  0.0417 it/s  2:39:36 left",
        "  the training takes about 0:26:36, and the time of its validations",
        f"  iteration   4/400{loss}  0.25 it/s  0:26:24 left",
        f"  iteration  12/400{loss}  0.25 it/s  0:25:52 left",
        "  validation: aAcc 3, mIoU 12.5",
    ]
    fast = {done: 1.0 + done / 100 for done in range(1, 49)}
    lines = run_lines(tmp_path, capsys, monkeypatch, fast, **settings)
    assert lines == ["  validation: aAcc 3, mIoU 12.5"]
