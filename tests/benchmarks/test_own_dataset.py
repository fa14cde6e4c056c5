"""The benchmark of own images: equal minutes of training, and the better rate of a network."""

import json
import sys

import numpy as np
import pytest

from benchmarks import own_dataset
from mmseg_ext import commands
from tests.datasets.trees import random_image, save

CONFIG = """\
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, end=20),
    dict(type="PolyLR", power=0.9, by_epoch=False, begin=20, end=400),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=400, val_interval=40)
default_hooks = dict(checkpoint=dict(interval=40, save_best="mIoU"))
optim_wrapper = dict(optimizer=dict(type="AdamW", lr=0.002))
train_dataloader = dict(num_workers=2, persistent_workers=True)
val_dataloader = dict(num_workers=2, persistent_workers=True)
"""


@pytest.mark.parametrize(("iterations", "warmup"), [(200, 10), (1000, 50), (5, 1)])
def test_a_schedule_is_scaled_to_the_iterations(tmp_path, iterations, warmup):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    cfg = own_dataset.scaled(path, iterations, validations=5, rate=0.25, seed=3)
    first, second = cfg.param_scheduler
    assert (first.get("begin"), first.end, second.begin) == (None, warmup, warmup)
    assert second.end == cfg.train_cfg.max_iters == iterations
    assert cfg.train_cfg.val_interval == iterations // 5
    assert cfg.optim_wrapper.optimizer.lr == 0.0005
    assert cfg.randomness.seed == 3
    assert cfg.train_dataloader.num_workers == cfg.val_dataloader.num_workers == 0


def test_the_table_shows_the_better_rate_of_a_network(monkeypatch):
    row = dict(set="weeds", budget=5, iterations=200, early=2, gib=1.5)
    config = row | dict(network="config", rate=1)
    low, high = (row | dict(network="unet", rate=rate) for rate in (0.25, 1))
    rows = [config | dict(seed=1, miou=70.0), config | dict(seed=0, miou=72.0)]
    rows += [high | dict(seed=0, miou=75.0), high | dict(seed=1, miou=65.0)]
    rows += [low | dict(seed=0, miou=70.0), low | dict(seed=1, miou=71.0)]
    monkeypatch.setattr(own_dataset, "read_rows", lambda: rows)
    lines = own_dataset.table().splitlines()[2:]
    assert [[cell.strip() for cell in line.split("|")[3:6]] for line in lines] == [
        ["config", "71.0", "72.0, 70.0"],
        ["unet, rate x 0.25", "70.5", "70.0, 71.0"],
    ]


def test_more_minutes_have_the_better_rate_of_the_fewest(tmp_path, monkeypatch):
    rows = []

    def run(project, network, rate, seed, minutes, args):
        better = {1.0: minutes == 5, 0.25: minutes == 15}[rate]
        row = dict(set=project.name, network=network, rate=rate, seed=seed, budget=minutes)
        rows.append(row | dict(miou=60 + better, iterations=1, early=1, gib=1))

    monkeypatch.setattr(own_dataset, "run", run)
    monkeypatch.setattr(own_dataset, "read_rows", lambda: rows)
    monkeypatch.setattr(own_dataset, "seconds_of", lambda project, networks: {})
    words = ["--networks", "unet", "--minutes", "15", "5", "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", ["own_dataset", str(tmp_path), *words])
    own_dataset.main()
    runs = [(row["budget"], row["rate"], row["seed"]) for row in rows]
    assert runs == [(5, 1, 0), (5, 1, 1), (5, 0.25, 0), (5, 0.25, 1), (15, 1, 0), (15, 1, 1)]


def test_a_training_has_one_row(tmp_path, monkeypatch):
    """In this process, which the measurement of memory does not need here."""
    for i in range(4):
        save(tmp_path / f"images/{i}.png", random_image(np.random.RandomState(i), (64, 64)))
        save(tmp_path / f"masks/{i}.png", np.eye(64, dtype=np.uint8))
    project = tmp_path / "project"
    flags = ["--images", str(tmp_path / "images"), "--masks", str(tmp_path / "masks")]
    assert commands.run("new_project", [str(project), *flags, "--from", "scratch"]) == 0
    monkeypatch.setattr(own_dataset, "RECORD", tmp_path / "rows.json")
    monkeypatch.setattr(own_dataset, "ROUNDS", 1)
    monkeypatch.setattr(own_dataset, "in_new_process", lambda function, *a: function(*a))
    words = ["--networks", "config", "--minutes", "0.02", "--seeds", "0", "--validations", "1"]
    monkeypatch.setattr(sys, "argv", ["own_dataset", str(project), *words])
    own_dataset.main()
    own_dataset.main()
    (row,) = json.loads(own_dataset.RECORD.read_text())
    assert (row["set"], row["network"], row["seed"]) == ("project", "config", 0)
    assert row["iterations"] == round(1.2 / row["seconds"])
    assert row["miou"] == pytest.approx(np.mean(list(row["iou"].values())), abs=0.01)
    assert row["early"] == pytest.approx(row["iterations"] * row["seconds"] / 60)
