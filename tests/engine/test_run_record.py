"""The record of a run: written at its start, and printed by print_config."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmseg.registry import DATASETS
from torch import nn

from mmseg_ext import commands
from mmseg_ext.engine import run_record
from mmseg_ext.engine.batch import batch_settings
from mmseg_ext.engine.run_record import describe_data, git_commit, initial_weights
from tests.engine.runs import ROOT, log_text, train, write_config
from tests.engine.states import UNVALIDATED, logged
from tests.messages import lines_with

FLAGS = ["--auto-scale-lr", "--amp", "--cfg-options", "optim_wrapper.accumulative_counts=3"]


def test_the_record_equals_the_output_of_print_config(tmp_path, capsys):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    line = [str(config), "--work-dir", str(work), *FLAGS, "train_cfg.max_iters=1"]
    assert commands.run("print_config", line) == 0
    shown = capsys.readouterr().out
    assert not work.exists()
    train(line)
    (folder,) = work.glob("2*/run.json")
    record = json.loads(folder.read_text())
    log = log_text(work)
    assert lines_with(log, "model.backbone.init_cfg")
    assert lines_with(log, "auto-scale-lr:", 4, 12, "x 3")
    assert logged(work)[1]["lr"] == pytest.approx(0.3)
    resolved = Config.fromfile(folder.with_name("config.py"))
    assert resolved.model.decode_head.num_classes == 3
    expected = batch_settings(resolved, 1) | {
        "effective_batch": 12,
        "learning_rate": 0.1,
        "learning_rate_factor": 3.0,
        "precision": "mixed, bfloat16",
        "seed": 0,
        "deterministic": False,
        "start_iteration": 0,
        "git_commit": git_commit(),
    }
    assert {k: record[k] for k in expected} == expected
    assert record["versions"]["torch"] == torch.__version__

    text, _, printed = shown.rpartition("\n{\n")
    assert record["training_data"].startswith("8 images, ")
    for key in ("folder", "iterations", "levers", "start_iteration", "started", "ended"):
        del record[key]
    del record["training_data"]
    assert json.loads("{" + printed) == record
    exec(text, namespace := {})
    assert namespace["optim_wrapper"] == resolved.optim_wrapper.to_dict()


def test_the_data_of_a_record_change_with_a_file(tmp_path):
    """Not with the folder; datasets inside wrappers count, too."""
    texts = []
    for name, change in {"a": "", "b": "", "c": "images/3.png", "d": "labels/3.png"}.items():
        cfg = Config.fromfile(write_config(tmp_path / name))
        if change:
            with (tmp_path / name / "data" / change).open("ab") as file:
                file.write(b"more")
        settings = dict(type="RepeatDataset", times=2, dataset=cfg.train_dataloader.dataset)
        texts.append(describe_data(DATASETS.build(settings)))
    assert texts[0] == texts[1] and len({*texts}) == 3
    assert all(text.startswith("8 images, ") for text in texts)
    assert describe_data(torch.utils.data.TensorDataset(torch.zeros(2))) == "unknown"


@pytest.mark.parametrize("key", ["ann_file", "xml_path"])
def test_labels_in_other_files_are_part_of_the_data(tmp_path, key):
    """As of COCO, with all labels in one file, and of VOC's boxes."""
    labels, texts = tmp_path / "labels", []
    dataset = BaseDataset(lazy_init=True, ann_file=str(labels) if key == "ann_file" else "")
    dataset.data_list = [{"img_path": "1.jpg", "instances": [], key: str(labels)}]
    dataset.serialize_data, dataset._fully_initialized = False, True
    for content in ("a", "ab"):
        labels.write_text(content)
        texts.append(describe_data(dataset))
    assert texts[0] != texts[1]


def test_a_resume_with_other_files_is_told(tmp_path, monkeypatch):
    """Of labels and of the user's module; a damaged record does not stop the run."""
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    module = tmp_path / "own.py"
    module.write_text("")
    text = config.read_text().replace(
        '"tests.engine.run_hooks"]', '"tests.engine.run_hooks", "own"]'
    )
    config.write_text(text)
    words = [str(config), "--work-dir", str(work), "--cfg-options", "train_cfg.max_iters="]
    train([*words[:-1], words[-1] + "1"])
    monkeypatch.chdir(tmp_path / "data")  # a relative work directory from another folder
    train([words[0], words[1], "../work", words[3], words[4] + "2", "--resume"])
    assert "at the last start" not in log_text(work)
    module.write_text("# changed")
    with (tmp_path / "data/labels/3.png").open("ab") as file:
        file.write(b"more")
    train([*words[:-1], words[-1] + "3", "--resume"])
    log = log_text(work)
    assert lines_with(log, "training_data: 8 images", "at the last start")
    assert lines_with(log, "own_modules: ", "'own': 'sha256", "at the last start")
    module.unlink()  # it was imported; a module that cannot be read has no hash
    max(work.glob("2*/run.json")).write_text("{")
    train([*words[:-1], words[-1] + "4", "--resume"])
    assert lines_with(log_text(work), "run.json: is damaged")


def test_the_commit_is_of_this_project_or_unknown(tmp_path, monkeypatch):
    """An installed package may be inside the checkout of another project."""
    if (ROOT / ".git").exists():
        assert re.fullmatch("[0-9a-f]{40}(-dirty)?", git_commit())
    installed = ROOT / "env/site-packages/mmseg_ext/engine/run_record.py"
    monkeypatch.setattr(run_record, "__file__", str(installed))
    assert git_commit() == "unknown"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    assert git_commit() == "unknown"


BATCH = {"train_dataloader": {"batch_size": 4}}
STEPS = {"optim_wrapper": {"accumulative_counts": 5}}


@pytest.mark.parametrize(
    ("cfg", "effective", "factor"),
    [
        ({}, None, 1.0),
        (BATCH | {"auto_scale_lr": {"base_batch_size": 6}}, 12, 1.0),
        (BATCH | {"auto_scale_lr": {"enable": True}}, 12, 1.0),
        (BATCH | STEPS | {"auto_scale_lr": {"enable": True, "base_batch_size": 6}}, 60, 10.0),
    ],
)
def test_batches_of_three_processes(cfg, effective, factor):
    settings = batch_settings(Config(cfg), 3)
    assert (settings["effective_batch"], settings["learning_rate_factor"]) == (effective, factor)


PRETRAINED = [{"type": "Constant"}, {"type": "Pretrained", "checkpoint": "weights.pth"}]


@pytest.mark.parametrize(
    ("init_cfg", "backbone", "load_from", "iteration", "expected"),
    [
        ({"type": "Kaiming"}, {}, None, 0, None),
        (PRETRAINED, {}, None, 0, "weights.pth"),
        (PRETRAINED, {}, "other.pth", 0, "other.pth"),
        (None, {"pretrained": True}, None, 0, "pretrained=True"),
        (None, {}, None, 1, "the resumed checkpoint"),
    ],
)
def test_initial_weights(init_cfg, backbone, load_from, iteration, expected):
    model = nn.Module()
    model.backbone = nn.Module()
    model.backbone.init_cfg = init_cfg
    cfg = Config({"model": {"backbone": backbone}, "load_from": load_from})
    assert initial_weights(SimpleNamespace(cfg=cfg, model=model, iter=iteration)) == expected
