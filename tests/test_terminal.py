"""The lines on the terminal during a training."""

import logging
import time
from types import SimpleNamespace

from mmengine.hooks import LoggerHook

from mmseg_ext.terminal import ProgressHook


def test_lines_of_a_resumed_run(monkeypatch, capsys, tmp_path):
    """Each interval and the last iteration; speed and time left since the start of this process."""
    clock = iter((10.0, 30.0, 60.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    losses = {"train/loss": SimpleNamespace(mean=lambda count: count / 50)}
    logger = logging.Logger("run")
    logger.addHandler(logging.StreamHandler(open(tmp_path / "terminal", "w")))  # noqa: SIM115
    logger.addHandler(logging.FileHandler(tmp_path / "log"))
    runner = SimpleNamespace(
        iter=50,
        max_iters=9350,
        message_hub=SimpleNamespace(log_scalars=losses),
        logger=logger,
        hooks=[LoggerHook(interval=100)],
    )
    hook = ProgressHook()
    hook.before_train(runner)
    for text in ("Iter(train) [ 1/2]  loss: 1", "Saving checkpoint", "Iter(val) [1/1]  mIoU: 2"):
        logger.info(text)
    logger.warning("Iter(train) is slow")
    for runner.iter in (98, 99, 100, 9349):
        hook.after_train_iter(runner, 0)
    hook.after_val_epoch(runner, {"aAcc": 3.0, "mIoU": 12.5})
    assert capsys.readouterr().out.splitlines() == [
        "  iteration  100/9350  loss 2.000  2.5 it/s  1:01:40 left",
        "  iteration 9350/9350  loss 2.000  186 it/s  0:00:00 left",
        "  validation: aAcc 3, mIoU 12.5",
    ]
    assert (tmp_path / "terminal").read_text() == "Saving checkpoint\nIter(train) is slow\n"
    assert (tmp_path / "log").read_text().count("\n") == 4
