"""Training in mmdetection: an exact resume and the demo."""

import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmdet")


import mmseg_ext.detection.operators_in_pytorch  # noqa: F401
from mmseg_ext.detection.shapes_coco import annotation_file  # where the training writes it
from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.engine.config import load_config  # as the commands read a config
from mmseg_ext.errors import LaunchError
from tests.commands.test_demo import commands_of
from tests.configs import CONFIGS
from tests.engine.runs import ROOT, run_script
from tests.messages import raises_message

RECIPE = dict(train=4, val=1, size=64)
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
    root = config.with_name("shapes")  # the first training makes them
    options = {}
    for split in ("train", "val", "test"):
        options[f"{split}_dataloader.dataset.data_root"] = f"{root}/"
        options[f"{split}_dataloader.dataset.recipe"] = RECIPE
    for split in ("val", "test"):
        options[f"{split}_evaluator.ann_file"] = str(annotation_file(root, "val"))
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


def test_the_demo_draws_detections(tmp_path):
    """The commands of `make demo-det`, with a few small scenes and two iterations."""
    (tmp_path / "configs").symlink_to(CONFIGS)
    options = [
        f"{split}_dataloader.dataset.recipe.{name}={value}"
        for split in ("train", "val", "test")
        for name, value in (("train", 8), ("val", 6), ("size", 64))
    ]
    short = ["train_cfg.max_iters=2", "train_cfg.val_interval=1000"]
    for words in commands_of("demo-det"):
        words = [word.replace("iter_500", "iter_2") for word in words]
        command = [*words, "--cfg-options", *options, *short]
        result = run_script(ROOT / "mmseg_ext/__main__.py", *command, folder=tmp_path)
        assert result.returncode == 0, result.stderr
    assert "coco/bbox_mAP" in result.stdout
    folder = tmp_path / "work_dirs/mask_rcnn_rmt_shapes/detections"
    pictures = [np.asarray(Image.open(path)) for path in folder.rglob("*.png")]
    assert len(pictures) == 6 and all(p.shape == (64, 128, 3) and p.std() > 10 for p in pictures)


def test_without_mmdetection_the_extra_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "mmdet"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mmdet", None)
    monkeypatch.delitem(sys.modules, "mmseg_ext.detection.checked_coco", raising=False)
    with raises_message(LaunchError, "'mmdet'", todo="[mm,det]"):
        load_config(str(CONFIGS / "detection/mask_rcnn_rmt_tiny_fpn_coco_1x.py"))
