"""Two processes over gloo, one of them killed: torchrun starts both again, nothing is lost."""

import json
import re

import pytest
import torch

from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.train import parser as train_parser
from mmseg_ext.commands.train import runner_of
from tests.engine.runs import ROOT, run, run_script, run_tool, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs

test.__test__ = False


@pytest.mark.slow
@pytest.mark.distributed
def test_a_killed_process_is_started_again_and_the_run_is_the_same(tmp_path):
    """SIGKILL of process 1 after iteration 7 of 8; no --resume on the command line."""
    write_config(tmp_path, RANDOM + UNVALIDATED, "whole.py")
    hook = (
        "custom_hooks += [dict(type='KillOnce', iteration=7, rank=1, "
        f"marker={str(tmp_path / 'killed')!r})]\n"
    )
    write_config(tmp_path, RANDOM + UNVALIDATED + hook, "killed.py")
    options = ["--cfg-options", "train_cfg.max_iters=8", "train_dataloader.batch_size=2"]
    words = [tmp_path / "whole.py", "--work-dir", tmp_path / "whole_work", *options]
    whole = run_tool("train.py", *words, ranks=2)
    assert whole.returncode == 0, whole.stderr
    agent, train = ROOT / "tests/engine/elastic.py", ROOT / "tools/train.py"
    words = [tmp_path / "killed.py", "--work-dir", tmp_path / "killed_work", *options]
    killed = run_script(agent, "1", train, *words, "--launcher", "pytorch")
    assert killed.returncode == 0, killed.stderr
    assert (tmp_path / "killed").exists()
    text = "".join(p.read_text() for p in (tmp_path / "killed_work").glob("2*/*.log"))
    assert "resumed epoch: 0, iter: 4" in text
    assert_same_runs(tmp_path / "killed_work", tmp_path / "whole_work", 8)

    # Two evaluations of that checkpoint, and one in two processes: equal to the last digit. Of the
    # five images one process gets two and a repeated one, which must not count.
    checkpoint = tmp_path / "whole_work/iter_8.pth"
    five = "test_dataloader = {**val_dataloader, 'dataset': {**dataset, 'indices': 5}}\n"
    config = write_config(tmp_path, RANDOM + five, "tested.py")
    metrics = []
    for name in ("once", "again"):
        work = ["--work-dir", str(tmp_path / name), "--cfg-options", f"visualizer.name={name}"]
        test([str(config), str(checkpoint), *work])
    result = run_tool("test.py", config, checkpoint, "--work-dir", tmp_path / "both", ranks=2)
    assert result.returncode == 0, result.stderr
    for name in ("once", "again", "both"):
        (path,) = (tmp_path / name).glob("2*/2*.json")
        found = json.loads(path.read_text())
        metrics.append({k: v for k, v in found.items() if "time" not in k})
    assert metrics[0] == metrics[1] == metrics[2]
    assert metrics[0]["mIoU"] > 0


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restarted_run_resumes_by_itself(tmp_path, monkeypatch, name):
    """Also one that was started from other weights: its own come first."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    start = tmp_path / "start.pth"
    torch.save({}, start)
    line = [str(config), "--work-dir", str(work), "--cfg-options", f"load_from={start}"]

    def built():
        runner = runner_of(train_parser().parse_args(line))
        return runner._load_from, runner._resume

    monkeypatch.setenv(name, "1")
    assert built() == (str(start), False)  # nothing saved yet
    (work / "iter_4.pth").write_bytes(b"")
    assert built() == (None, True)
    monkeypatch.setenv(name, "0")
    assert built() == (str(start), False)


def test_the_script_hands_restarts_and_signals_to_torchrun(tmp_path):
    """SIGUSR1 to torchrun alone would end it, and the processes would train on."""
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" "$PET_SIGNALS_TO_HANDLE"\n')
    python.chmod(0o755)
    given = run(ROOT / "tools/dist_train.sh", "c.py", "2", PYTHON=str(python), MAX_RESTARTS="3")
    assert re.search(r"^--max_restarts=3$", given.stdout, re.MULTILINE)
    assert given.stdout.endswith(",SIGUSR1\n")
