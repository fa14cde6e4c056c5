"""Two processes over gloo: torchrun restarts both after one was killed, without losses."""

import json

import pytest

from mmseg_ext.commands.test import main as test
from tests.engine.runs import ROOT, log_text, run_script, run_tool, train_words, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs

test.__test__ = False


@pytest.mark.distributed
def test_a_run_with_a_killed_process_restarts_exactly(tmp_path):
    """SIGKILL to process 1 after iteration 7 of 8, without --resume on the command line."""
    hooks = "custom_hooks += [dict(type='SignalAt', iteration=7, rank=1, number=9)]\n"
    whole, killed = (
        train_words(
            write_config(tmp_path, RANDOM + UNVALIDATED + extra, f"{name}.py"),
            tmp_path / name,
            "train_cfg.max_iters=8",
            "train_dataloader.batch_size=2",
        )
        for name, extra in (("whole", ""), ("killed", hooks))
    )
    result = run_tool("train.py", *whole, ranks=2)
    assert result.returncode == 0, result.stderr
    agent, tool = ROOT / "tests/engine/elastic.py", ROOT / "tools/train.py"
    result = run_script(agent, "1", tool, *killed, "--launcher", "pytorch")
    assert result.returncode == 0, result.stderr
    assert "resumed epoch: 0, iter: 4" in log_text(tmp_path / "killed")
    assert_same_runs(tmp_path / "killed", tmp_path / "whole", 8)

    # A test of that checkpoint and one in two processes give the same scores. One of the processes
    # gets two of the five images and a repeated one, which must not count.
    five = "test_dataloader = {**val_dataloader, 'dataset': {**dataset, 'indices': 5}}\n"
    config, metrics = write_config(tmp_path, RANDOM + five, "tested.py"), []
    for name in ("one", "both"):
        words = [config, tmp_path / "whole/iter_8.pth", "--work-dir", tmp_path / name]
        words += ["--cfg-options", f"visualizer.name={name}"]
        if name == "both":
            result = run_tool("test.py", *words, ranks=2)
            assert result.returncode == 0, result.stderr
        else:
            test([str(word) for word in words])
        (path,) = (tmp_path / name).glob("2*/2*.json")
        found = json.loads(path.read_text())
        metrics.append({k: v for k, v in found.items() if "time" not in k})
    assert metrics[0] == metrics[1]
    assert metrics[0]["mIoU"] > 0
