"""The tools as a user starts them: processes, exit statuses, and two processes over gloo."""

import json
import os
from pathlib import Path

import pytest

from mmseg_ext.checkpoint import read_state_dict
from tests.engine.runs import (
    LAUNCHER,
    ROOT,
    free_port,
    run,
    run_script,
    run_tool,
    train_here,
    train_words,
    write_config,
)
from tests.engine.states import UNVALIDATED, logged

TOOLS = ROOT / "tools"


@pytest.mark.distributed
def test_two_processes_train_as_one_with_the_whole_batch(tmp_path, monkeypatch):
    """Five steps: gloo, 2 processes x 2 images against one process x 4 of the same images."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    config, works = write_config(tmp_path), (tmp_path / "two", tmp_path / "one")
    options = ["train_cfg.max_iters=5", "train_cfg.val_interval=5"]
    words = train_words(config, works[0], "train_dataloader.batch_size=2", *options)
    result = run_tool("train.py", *words, ranks=2)
    assert result.returncode == 0, result.stderr
    train_here(config, works[1], *options)
    two, one = (read_state_dict(work / "iter_5.pth") for work in works)
    assert two.keys() == one.keys()
    for name, value in one.items():
        assert (two[name] - value).abs().max() <= 1e-5 * value.abs().max(), name

    # The two processes share the evaluation, too: same weights, same score.
    scores = [logged(work, "mIoU")[5]["mIoU"] for work in works]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    assert 0 < scores[0] < 100


def write_command(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("kind", ["train", "test"])
def test_scripts_start_torchrun_and_srun(kind, tmp_path):
    """With the restarts and signals that torchrun hands on: SIGUSR1 to it alone would end it."""
    python = write_command(tmp_path, "python", 'echo "$@" "$PET_SIGNALS_TO_HANDLE"')
    write_command(tmp_path, "srun", 'echo "$@"')
    words = ["c.py"] if kind == "train" else ["c.py", "a.pth"]
    names = {"NNODES": "3", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.7", "PORT": "1234"}
    names |= {"MAX_RESTARTS": "3", "PYTHON": str(python)}
    result = run(TOOLS / f"dist_{kind}.sh", *words, "8", "--x", **names)
    given, _, signals = result.stdout.rpartition(" ")
    assert given.replace(" --max_restarts=3", "") == (
        "-m torch.distributed.run --nnodes=3 --node_rank=1 --master_addr=10.0.0.7 "
        f"--master_port=1234 --nproc_per_node=8 {TOOLS}/{kind}.py {' '.join(words)} "
        "--launcher pytorch --x"
    )
    if kind == "train":
        assert " --max_restarts=3 " in given and signals.endswith(",SIGUSR1\n")
    names = {"GPUS": "16", "GPUS_PER_NODE": "8", "SRUN_ARGS": "--qos=a --time=1"}
    names |= {"PYTHON": "python3", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    result = run(TOOLS / f"slurm_{kind}.sh", "part", "job", *words, "--x", **names)
    assert result.stdout == (
        "-p part --job-name=job --gres=gpu:8 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=5 "
        f"--kill-on-bad-exit=1 --qos=a --time=1 python3 -u {TOOLS}/{kind}.py --launcher slurm "
        f"{' '.join(words)} --x\n"
    )


# A stand-in for the command of a Slurm cluster that has one node.
SCONTROL = "[ \"$*\" = 'show hostnames node[3]' ] && echo 127.0.0.1\n"


@pytest.mark.slow
@pytest.mark.distributed
def test_slurm_train_runs_its_tasks(tmp_path):
    """Two, which are one run: one log, one record of the start and one checkpoint.

    `srun` prints what it would start.
    """
    commands = tmp_path / "commands"
    write_command(commands, "scontrol", SCONTROL)
    write_command(commands, "srun", 'echo "$@"')
    words = ["part", "job", write_config(tmp_path, UNVALIDATED)]
    options = ["--cfg-options", "train_cfg.max_iters=1", "train_dataloader.batch_size=2"]
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    printed = run(TOOLS / "slurm_train.sh", *words, *options, PATH=path).stdout
    _, _, command = printed.partition(" -u ")
    job = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "node[3]", "SLURM_NTASKS": "2"}
    job |= {"PATH": path, "MASTER_PORT": free_port()}
    tasks = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    result = run_script(*command.split(), folder=tmp_path, tasks=tasks, **job)
    assert result.returncode == 0, result.stderr
    work = tmp_path / "work_dirs/tiny"
    assert len(list(work.glob("2*/*.log"))) == 1
    (record,) = work.glob("2*/run.json")
    assert json.loads(record.read_text())["world_size"] == 2
    assert [p.name for p in work.glob("*.pth")] == ["iter_1.pth"]
