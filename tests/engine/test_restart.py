"""Two processes over gloo: torchrun restarts both after one was killed, without losses."""

import json
from pathlib import Path

import pytest

from tests.engine.runs import ROOT, free_port, log_text, run, run_tool, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs

DRAWN = RANDOM + UNVALIDATED


@pytest.mark.distributed
def test_a_run_with_a_killed_process_restarts_exactly(tmp_path, monkeypatch):
    """SIGKILL to process 1 after iteration 7 of 8, without --resume on the command line."""
    monkeypatch.chdir(tmp_path)  # in the default work directories
    hooks = "custom_hooks += [dict(type='SignalAt', iteration=7, rank=1, number=9)]\n"
    words = ("--cfg-options", "train_cfg.max_iters=8", "train_dataloader.batch_size=2")
    whole, killed = (
        write_config(tmp_path, text, f"{name}.py")
        for name, text in (("whole", DRAWN), ("killed", DRAWN + hooks))
    )
    restarts = {"MAX_RESTARTS": "1", "PORT": free_port()}
    for result in (
        run_tool("train.py", whole, *words, ranks=2),
        run(ROOT / "tools/dist_train.sh", killed, "2", *words, **restarts),
    ):
        assert result.returncode == 0, result.stderr
    works = Path("work_dirs/killed"), Path("work_dirs/whole")
    assert "resumed epoch: 0, iter: 4" in log_text(works[0])
    assert_same_runs(*works, 8)

    # A test of that checkpoint and one in two processes give the same scores. One of the processes
    # gets two of the five images and a repeated one, which must not count.
    five = "test_dataloader = {**val_dataloader, 'dataset': {**dataset, 'indices': 5}}\n"
    config, metrics = write_config(tmp_path, RANDOM + five, "tested.py"), []
    for ranks in (0, 2):
        work = Path(f"tested{ranks}")
        words = [config, works[1] / "iter_8.pth", "--work-dir", work]
        result = run_tool("test.py", *words, ranks=ranks)
        assert result.returncode == 0, result.stderr
        (path,) = work.glob("2*/2*.json")
        found = json.loads(path.read_text())
        metrics.append({k: v for k, v in found.items() if "time" not in k})
    assert metrics[0] == metrics[1]
    assert metrics[0]["mIoU"] > 0
