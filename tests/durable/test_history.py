"""The history of logged values is as long as the log needs it."""

import re

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmseg_ext.checkpoint.files import read_checkpoint  # all values of a file
from tests.engine.runs import log_text, train_here, write_config
from tests.engine.states import assert_same, logged
from tests.messages import resumed_iterations

COMPLETE = """
log_processor["custom_cfg"] = [
    dict(data_src="loss", log_name="all", method_name="mean", window_size="global")
]
"""
WINDOW = """
log_processor = dict(type="LogProcessor", window_size=3, by_epoch=False)
train_cfg = dict(type="IterBasedTrainLoop", max_iters=12, val_interval=5)
val_dataloader["dataset"] = {**dataset, "indices": 4}
"""


def histories(path) -> dict[str, np.ndarray]:
    content = read_checkpoint(path)["message_hub"]["log_scalars"]
    return {name: history.data[0] for name, history in content.items()}


@pytest.mark.slow
def test_the_log_of_a_short_history_is_the_same(tmp_path):
    """A window over the complete run keeps it. A validation's times are means over its images."""
    short, complete = tmp_path / "short", tmp_path / "complete"
    train_here(write_config(tmp_path, WINDOW), short)
    train_here(write_config(tmp_path, WINDOW + COMPLETE, "all.py"), complete)
    ours, theirs = logged(short), logged(complete)
    losses = histories(complete / "iter_12.pth")["train/loss"]
    assert len(losses) == 12 and theirs[12].pop("all") == losses.mean()
    assert len(ours) == 12 and ours[12]["loss"] == losses[-3:].mean()
    assert ours == {i: {k: v for k, v in row.items() if k != "all"} for i, row in theirs.items()}
    kept = histories(short / "iter_12.pth")
    assert {len(v) for k, v in kept.items() if k.startswith("train/")} == {4}
    assert len(kept["val/time"]) == 4 and len(kept["val/mIoU"]) == 3
    assert np.array_equal(kept["train/loss"], losses[-4:])
    scores = re.findall(r"Iter\(val\).*(?=aAcc)(.*)", log_text(short))[-1]
    assert {*re.findall(r"(\w+):", scores)} == {"aAcc", "mIoU", "mAcc", "data_time", "time"}


def test_a_long_history_of_a_checkpoint_is_shortened(tmp_path):
    """A checkpoint of an earlier version, at iteration 160,000 of a run."""
    config, path = write_config(tmp_path, WINDOW), tmp_path / "work/iter_1.pth"
    train_here(config, path.parent, "train_cfg.max_iters=1")
    small, content = path.stat().st_size, read_checkpoint(path)
    scalars = content["message_hub"]["log_scalars"]
    for name in [name for name in scalars if name.startswith("train/")]:
        scalars[name] = HistoryBuffer(np.arange(160_000.0), np.ones(160_000))
    torch.save(content, path)
    assert path.stat().st_size > small + 10**7
    train_here(config, path.parent, "train_cfg.max_iters=4", flags=("--resume",))
    assert resumed_iterations(log_text(path.parent)) == [1]
    last = path.with_name("iter_4.pth")
    assert last.stat().st_size < small + 10_000
    assert all(len(values) == 4 for k, values in histories(last).items() if k[:5] == "train")
    assert_same(read_checkpoint(last)["message_hub"]["log_scalars"]["train/lr"].max_length, 4)
