"""Two processes over gloo: torchrun restarts both after one was killed, without losses."""

import json

import pytest

from tests.engine.runs import ROOT, free_port, log_text, run, run_tool, train_words, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs

DRAWN = RANDOM + UNVALIDATED


@pytest.mark.distributed
def test_a_run_with_a_killed_process_restarts_exactly(tmp_path):
    """SIGKILL to process 1 after iteration 7 of 8, without --resume on the command line."""
    hooks = "custom_hooks += [dict(type='SignalAt', iteration=7, rank=1, number=9)]\n"
    options = ("train_cfg.max_iters=8", "train_dataloader.batch_size=2")
    whole, killed = (
        train_words(write_config(tmp_path, text, f"{name}.py"), tmp_path / name, *options)
        for name, text in (("whole", DRAWN), ("killed", DRAWN + hooks))
    )
    config, *words = killed
    restarts = {"MAX_RESTARTS": "1", "PORT": free_port()}
    for result in (
        run_tool("train.py", *whole, ranks=2),
        run(ROOT / "tools/dist_train.sh", config, "2", *words, **restarts),
    ):
        assert result.returncode == 0, result.stderr
    assert "resumed epoch: 0, iter: 4" in log_text(tmp_path / "killed")
    assert_same_runs(tmp_path / "killed", tmp_path / "whole", 8)

    # A test of that checkpoint and one in two processes give the same scores. One of the processes
    # gets two of the five images and a repeated one, which must not count.
    five = "test_dataloader = {**val_dataloader, 'dataset': {**dataset, 'indices': 5}}\n"
    config, metrics = write_config(tmp_path, RANDOM + five, "tested.py"), []
    for ranks in (0, 2):
        work = tmp_path / f"tested{ranks}"
        words = [config, tmp_path / "whole/iter_8.pth", "--work-dir", work]
        result = run_tool("test.py", *words, ranks=ranks)
        assert result.returncode == 0, result.stderr
        (path,) = work.glob("2*/2*.json")
        found = json.loads(path.read_text())
        metrics.append({k: v for k, v in found.items() if "time" not in k})
    assert metrics[0] == metrics[1]
    assert metrics[0]["mIoU"] > 0
