"""The tools as a user starts them: processes, exit statuses, and two processes over gloo."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmseg_ext.commands.train import main as train
from tests.engine.runs import ROOT, free_port, recorded, run, run_tool, write_config
from tests.engine.states import UNVALIDATED

TOOLS = ROOT / "tools"
SCRIPTS = ("dist_train.sh", "dist_test.sh", "slurm_train.sh", "slurm_test.sh")


# Stand-in for a command of a Slurm cluster that has one node.
SCONTROL = """#!/usr/bin/env bash
[ "$*" = 'show hostnames node[3]' ] && echo 127.0.0.1
"""


@pytest.fixture
def slurm_job(tmp_path) -> dict[str, str]:
    """What Slurm sets for all tasks of a job."""
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "scontrol").write_text(SCONTROL)
    (commands / "scontrol").chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "node[3]", "PATH": path}


@pytest.mark.distributed
@pytest.mark.parametrize("launcher", ["pytorch", "slurm"])
def test_two_processes_train_as_one_with_the_whole_batch(
    tmp_path, monkeypatch, launcher, slurm_job
):
    """Five steps: gloo, 2 processes x 2 images against one process x 4 of the same images."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    config = write_config(tmp_path, "custom_hooks = [dict(type='RecordLoss', path='')]\n")
    options = ["train_cfg.max_iters=5", "train_cfg.val_interval=5"]
    halves = ["train_dataloader.batch_size=2", f"custom_hooks.0.path={tmp_path / 'two.loss'}"]
    words = [config, "--work-dir", tmp_path / "two", "--cfg-options", *halves, *options]
    job = slurm_job if launcher == "slurm" else {}
    result = run_tool("train.py", *words, ranks=2, launcher=launcher, **job)
    assert result.returncode == 0, result.stderr
    whole = ["--cfg-options", f"custom_hooks.0.path={tmp_path / 'one.loss'}", *options]
    train([str(config), "--work-dir", str(tmp_path / "one"), *whole])
    first, second = (recorded(tmp_path / f"two.loss.{rank}") for rank in (0, 1))
    whole = recorded(tmp_path / "one.loss.0")
    assert list(whole) == list(first) == list(second) == [1, 2, 3, 4, 5]
    assert max(abs(first[i] - second[i]) for i in whole) > 1e-3  # each saw its own half
    halves = {i: (first[i] + second[i]) / 2 for i in whole}
    assert halves == pytest.approx(whole, rel=1e-5)

    two, one = (
        torch.load(tmp_path / name / "iter_5.pth", weights_only=True)["state_dict"]
        for name in ("two", "one")
    )
    assert two.keys() == one.keys()
    for name, value in one.items():
        assert (two[name] - value).abs().max() <= 1e-5 * value.abs().max(), name

    # The two processes share the evaluation, too: same weights, same score.
    scores = [validated_miou(tmp_path / name) for name in ("two", "one")]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    assert 0 < scores[0] < 100

    if launcher == "slurm":  # one log, one record of the start, and the test of the checkpoint
        assert len(list((tmp_path / "two").glob("2*/*.log"))) == 1
        (record,) = (tmp_path / "two").glob("2*/run.json")
        started = json.loads(record.read_text())
        assert (started["world_size"], started["launched"]) == (2, {"SLURM_JOB_ID": "7"})
        checkpoint = tmp_path / "two/iter_5.pth"
        words = [config, checkpoint, "--work-dir", tmp_path / "tested"]
        result = run_tool("test.py", *words, ranks=2, launcher="slurm", **job)
        assert result.returncode == 0, result.stderr
        (metrics,) = (tmp_path / "tested").glob("2*/2*.json")
        assert json.loads(metrics.read_text())["mIoU"] == pytest.approx(scores[0], rel=1e-6)


def validated_miou(work_dir: Path) -> float:
    (path,) = work_dir.glob("2*/vis_data/scalars.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["mIoU"] for row in rows if "mIoU" in row][-1]


def test_a_missing_config_is_one_line_and_a_failure():
    result = run_tool("train.py", "nowhere.py")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "mmseg_ext: config: there is no file 'nowhere.py'"
    assert "Traceback" not in result.stderr


def test_a_missing_stack_is_one_line_with_the_remedy(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'mmengine' else find(name, *a)\n"
    )
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    result = run(sys.executable, TOOLS / "test.py", "config.py", PYTHONPATH=path)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "'mmengine' is not installed; run: pip install onedl-mmcv" in line


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_say_how_they_are_used(script):
    result = run(TOOLS / script)
    assert result.returncode == 2
    assert result.stderr.startswith("usage: ")
    assert ("CHECKPOINT" in result.stderr) == ("test" in script)


def record_command(folder: Path, name: str) -> Path:
    """An executable that prints its arguments, one a line."""
    path = folder / name
    path.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("kind", ["train", "test"])
def test_dist_scripts_start_torchrun(kind, tmp_path):
    python = record_command(tmp_path, "python")
    checkpoint = ["a.pth"] if kind == "test" else []
    names = {"NNODES": "3", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.7", "PORT": "1234"}
    result = run(
        TOOLS / f"dist_{kind}.sh",
        "c.py",
        *checkpoint,
        "8",
        "--x",
        "a b",
        PYTHON=str(python),
        **names,
    )
    assert result.stdout.splitlines() == [
        "-m",
        "torch.distributed.run",
        "--nnodes=3",
        "--node_rank=1",
        "--master_addr=10.0.0.7",
        "--master_port=1234",
        "--nproc_per_node=8",
        f"{TOOLS}/{kind}.py",
        "c.py",
        *checkpoint,
        "--launcher",
        "pytorch",
        "--x",
        "a b",
    ]


@pytest.mark.parametrize("kind", ["train", "test"])
def test_slurm_scripts_start_srun(kind, tmp_path):
    record_command(tmp_path, "srun")
    checkpoint = ["a.pth"] if kind == "test" else []
    result = run(
        TOOLS / f"slurm_{kind}.sh",
        "part",
        "job",
        "c.py",
        *checkpoint,
        "--x",
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        PYTHON="python3",
        GPUS="16",
        GPUS_PER_NODE="8",
        SRUN_ARGS="--qos=a --time=1",
    )
    assert result.stdout.splitlines() == [
        "-p",
        "part",
        "--job-name=job",
        "--gres=gpu:8",
        "--ntasks=16",
        "--ntasks-per-node=8",
        "--cpus-per-task=5",
        "--kill-on-bad-exit=1",
        "--qos=a",
        "--time=1",
        "python3",
        "-u",
        f"{TOOLS}/{kind}.py",
        "--launcher",
        "slurm",
        "c.py",
        *checkpoint,
        "--x",
    ]


# Stand-in for `srun`, which starts the tasks, here all on this machine.
SRUN = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do
    case $1 in
        -p) shift ;;
        --ntasks=*) export SLURM_NTASKS=${1#*=} ;;
    esac
    shift
done
tasks=()
for ((i = 0; i < SLURM_NTASKS; i++)); do
    SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit "${status:-0}"
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_slurm_train_runs_its_tasks(tmp_path, slurm_job):
    """Two, which are one run: one log and one checkpoint."""
    srun = tmp_path / "commands/srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    words = ["part", "job", write_config(tmp_path, UNVALIDATED), "--work-dir", tmp_path / "work"]
    options = ["--cfg-options", "train_cfg.max_iters=1", "train_dataloader.batch_size=2"]
    job = {**slurm_job, "GPUS": "2", "MASTER_PORT": free_port()}
    result = run(TOOLS / "slurm_train.sh", *words, *options, **job)
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "work").glob("2*/*.log"))) == 1
    (record,) = (tmp_path / "work").glob("2*/run.json")
    assert json.loads(record.read_text())["world_size"] == 2
    assert [p.name for p in (tmp_path / "work").glob("*.pth")] == ["iter_1.pth"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_parse(script):
    path = TOOLS / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)
