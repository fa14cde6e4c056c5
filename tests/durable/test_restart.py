"""Two processes over gloo: torchrun restarts both after one was killed, without losses."""

import json
import re
from pathlib import Path

import pytest

from tests.engine.runs import (
    ROOT,
    free_port,
    log_text,
    run,
    run_tool,
    train_here,
    train_words,
    write_config,
)
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


@pytest.mark.distributed
def test_machines_without_a_common_folder(tmp_path):
    """They score as one process, also if one gets two of five images and a repeated one.

    A resume reads the checkpoint on each machine.
    """
    five = "test_dataloader = {**val_dataloader, 'dataset': {**dataset, 'indices': 5}}\n"
    metric = "test_evaluator = dict(type='CheckedIoUMetric', iou_metrics=['mIoU'])\n"
    config, found = write_config(tmp_path, RANDOM + five + metric), []
    machines = tmp_path / "first", tmp_path / "second"
    for folder in machines:
        folder.mkdir()
    path = machines[0] / "work/iter_2.pth"
    train_here(config, path.parent, "train_cfg.max_iters=2")
    for name, several in (("one", ()), ("two", machines)):
        words = (config, path, "--work-dir", name)
        result = run_tool("test.py", *words, folder=machines[0], machines=several)
        assert result.returncode == 0, result.stderr
        (scores,) = (machines[0] / name).glob("2*/2*.json")
        results = json.loads((scores.parent / "results.json").read_text())
        scores = json.loads(scores.read_text())
        found.append((results["confusion"], {k: scores[k] for k in scores if "time" not in k}))
    assert found[0] == found[1]
    assert found[0][1]["mIoU"] > 0 and sum(map(sum, found[0][0])) == 5 * 32 * 32

    options = ("train_cfg.max_iters=3", "load_from=work/iter_2.pth")
    words = train_words(config, Path("work"), *options, flags=("--resume",))
    result = run_tool("train.py", *words, machines=machines)
    assert result.returncode != 0
    assert re.search(r"mmseg_ext: work/iter_2\.pth: .*process 1.*shared folder", result.stderr)
