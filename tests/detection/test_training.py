"""Training in mmdetection: an exact resume and the demo."""

import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmdet")


import mmseg_ext.detection.operators_in_pytorch  # noqa: F401
from mmseg_ext.commands._demos import data_options, detection_demo
from mmseg_ext.datasets.shapes import Recipe
from mmseg_ext.engine.launch import build_train_runner, load_settings
from mmseg_ext.errors import LaunchError
from tests.configs import CONFIGS

RECIPE = Recipe(train=4, val=1, size=64)
SHAPES = CONFIGS / "detection/mask_rcnn_rmt_shapes.py"
# As the configs for COCO: epochs, a sampler of mmengine's, batches of mmdetection's.
BY_EPOCH = f"""
_base_ = [{str(SHAPES)!r}]
train_dataloader = dict(
    batch_size=2,
    sampler=dict(_delete_=True, type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="AspectRatioBatchSampler"),
)
train_cfg = dict(_delete_=True, type="EpochBasedTrainLoop", max_epochs=2, val_interval=10)
param_scheduler = [dict(type="MultiStepLR", by_epoch=True, milestones=[1], gamma=0.1)]
log_processor = dict(by_epoch=True)
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=2))
randomness = dict(seed=None)
"""


def train(config, work_dir, resume=False):
    options = data_options(config.with_name("shapes"), RECIPE)  # the first training makes them
    options["visualizer.name"] = work_dir.name
    runner = build_train_runner(str(config), options, str(work_dir), resume=resume)
    runner.train()
    return runner.model.state_dict()


def test_a_resumed_run_ends_in_the_very_same_weights(tmp_path):
    """With a seed of its own that only the checkpoint knows."""
    config = tmp_path / "by_epoch.py"
    config.write_text(BY_EPOCH)
    whole = train(config, tmp_path / "whole")
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole/epoch_1.pth", tmp_path / "resumed/epoch_1.pth")
    torch.manual_seed(99)
    resumed = train(config, tmp_path / "resumed", resume=True)
    assert not [name for name in whole if not torch.equal(whole[name], resumed[name])]
    first = torch.load(tmp_path / "whole/epoch_1.pth", weights_only=False)["state_dict"]
    assert not all(torch.equal(first[name], whole[name]) for name in whole)


def test_the_demo_draws_and_fails_below_its_floor(tmp_path, capsys):
    options = {"train_cfg.max_iters": 2, "train_cfg.val_interval": 2}
    recipe = Recipe(train=8, val=6, size=64)
    assert not detection_demo(tmp_path / "run", tmp_path / "shapes", options=options, recipe=recipe)
    printed = capsys.readouterr().out
    assert "2 iterations" in printed and "FAILED: bbox AP" in printed
    pictures = [np.asarray(Image.open(p)) for p in (tmp_path / "run/detections").iterdir()]
    assert len(pictures) == 6 and all(p.shape == (64, 128, 3) and p.std() > 10 for p in pictures)


def test_without_mmdetection_the_extra_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "mmdet"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mmdet", None)
    monkeypatch.delitem(sys.modules, "mmseg_ext.detection.checked_coco", raising=False)
    with pytest.raises(LaunchError, match=r"'mmdet' is not installed; run.*\[mm,det\]"):
        load_settings(str(CONFIGS / "detection/mask_rcnn_rmt_tiny_fpn_coco_1x.py"))
