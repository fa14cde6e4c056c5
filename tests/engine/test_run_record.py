"""What a run is made of: written at its start, and shown without it."""

import json
import re

import torch
from mmengine.config import Config

import mmseg_ext
from mmseg_ext.commands.print_config import main as print_config
from mmseg_ext.commands.train import main as train
from mmseg_ext.engine.run_record import git_commit
from tests.engine.runs import ROOT, write_config
from tests.engine.states import UNVALIDATED

FLAGS = ["--auto-scale-lr", "--amp", "--cfg-options", "optim_wrapper.accumulative_counts=3"]


def test_the_record_of_a_run_and_what_print_config_shows(tmp_path, capsys):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    line = [str(config), "--work-dir", str(work), *FLAGS, "train_cfg.max_iters=1"]
    print_config(line)
    shown = capsys.readouterr().out
    assert not work.exists()
    train(line)
    (folder,) = work.glob("2*/run.json")
    record = json.loads(folder.read_text())
    expected = {
        "world_size": 1,
        "batch_per_process": 4,
        "accumulated_batches": 3,
        "effective_batch": 12,
        "base_batch": 4,
        "learning_rate": 0.1,
        "learning_rate_factor": 3.0,
        "precision": "PortableAmpOptimWrapper",
        "seed": 0,
        "deterministic": False,
        "start_iteration": 0,
        "git_commit": git_commit(),
    }
    assert {k: record[k] for k in expected} == expected
    assert record["versions"]["torch"] == torch.__version__
    resolved = Config.fromfile(folder.with_name("config.py"))
    assert resolved.model.decode_head.num_classes == 3
    assert resolved.optim_wrapper.type == "PortableAmpOptimWrapper"

    text, _, printed = shown.rpartition("\n{\n")
    printed = json.loads("{" + printed)
    del record["start_iteration"]
    assert printed == record
    namespace = {}
    exec(text, namespace)
    assert namespace["optim_wrapper"] == resolved.optim_wrapper.to_dict()


def test_print_config_counts_processes(tmp_path, capsys):
    config = write_config(tmp_path)
    print_config([str(config), "--world-size", "8"])
    assert '"effective_batch": 32' in capsys.readouterr().out


def test_the_commit_is_this_projects_or_unknown(tmp_path, monkeypatch):
    """An installed package may lie in the checkout of another project."""
    if (ROOT / ".git").exists():
        assert re.fullmatch("[0-9a-f]{40}(-dirty)?", git_commit())
    installed = ROOT / "env/site-packages/mmseg_ext/__init__.py"
    monkeypatch.setattr(mmseg_ext, "__file__", str(installed))
    assert git_commit() == "unknown"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    assert git_commit() == "unknown"
