"""Logged values and label maps do not make the loop wait, and nothing else changes."""

import copy

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import RuntimeInfoHook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from mmseg_ext.durable.without_waiting import WaitingInfoHook, pin_samples
from tests.engine.runs import built, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED, assert_same_runs


class Run:
    """The part of a Runner that the hook uses."""

    def __init__(self, name: str):
        self.message_hub = MessageHub.get_instance(name)


def losses(iteration: int) -> dict[str, Tensor]:
    values = {"loss": torch.tensor(iteration / 3), "acc": torch.tensor([iteration / 7.0]).double()}
    return values if iteration % 2 else {"loss": values["loss"].bfloat16()}


def test_values_are_read_when_something_needs_them(monkeypatch):
    runs, hooks = [Run("waits"), Run("plain")], [WaitingInfoHook("cpu"), RuntimeInfoHook()]
    for iteration in (1, 2):  # the histories exist
        for run, hook in zip(runs, hooks, strict=True):
            hook.after_train_iter(run, 0, outputs=losses(iteration))
    for iteration in range(3, 9):
        hooks[1].after_train_iter(runs[1], 0, outputs=losses(iteration))
    with monkeypatch.context() as context:
        context.setattr(Tensor, "item", None)
        context.setattr(Tensor, "tolist", None)
        for iteration in range(3, 9):
            values = losses(iteration)
            hooks[0].after_train_iter(runs[0], 0, outputs=values)
            for value in values.values():
                value.zero_()
    hubs = [run.message_hub for run in runs]
    for hub in hubs:
        hub.update_scalar("train/acc", 5.0)  # after the waiting values
    for name in ("train/loss", "train/acc"):
        ours, theirs = (hub.get_scalar(name) for hub in hubs)
        assert ours.mean(3) == theirs.mean(3) and ours.current() == theirs.current()
        saved = copy.deepcopy(ours)
        assert type(saved) is HistoryBuffer
        for one, two in zip(saved.data, theirs.data, strict=True):
            assert one.dtype == two.dtype and one.tolist() == two.tolist()


def test_few_values_wait(monkeypatch):
    run, hook, read = Run("long"), WaitingInfoHook("cpu"), []
    tolist = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: read.append(len(self)) or tolist(self))
    for _ in range(2500):
        hook.after_train_iter(run, 0, outputs={"loss": torch.ones(())})
    assert read == [1000, 1000]
    assert len(run.message_hub.get_scalar("train/loss").data[0]) == 2500


@pytest.mark.slow
def test_logs_and_checkpoints_are_the_same(tmp_path):
    text = UNVALIDATED + "custom_hooks = [dict(type='EMAHook', momentum=0.1)]\n"
    config = write_config(tmp_path, text + "default_hooks['logger']['interval'] = 1\n")
    train_here(config, tmp_path / "plain")
    for first in (6, 12):
        flags = ("--resume",) if first == 12 else ()
        words = train_words(config, tmp_path / "waits", f"train_cfg.max_iters={first}", flags=flags)
        runner = built(*words)
        (place,) = (i for i, h in enumerate(runner.hooks) if isinstance(h, RuntimeInfoHook))
        assert type(runner.hooks[place]) is WaitingInfoHook
        runner.hooks[place] = WaitingInfoHook("cpu")
        runner.train()
    assert_same_runs(tmp_path / "plain", tmp_path / "waits", 12)


@pytest.mark.parametrize("pinned", [False, True])
def test_label_maps_are_pinned_with_images(monkeypatch, pinned):
    label = PixelData(data=torch.ones(1, 2, 2))
    sample = SegDataSample(gt_sem_seg=label, metainfo={"img_path": "a.png"})
    items = [{"inputs": torch.ones(3, 2, 2), "data_samples": sample}] * 2
    loader = DataLoader(items, 2, collate_fn=pseudo_collate, pin_memory=pinned)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 1)
    batch = pin_memory(pin_samples(loader).collate_fn(items))
    assert [image.mean() for image in batch["inputs"]] == [2, 2]
    for found in batch["data_samples"]:
        assert type(found) is SegDataSample and found.img_path == "a.png"
        assert found.gt_sem_seg.data.mean() == (2 if pinned else 1)
    assert label.data.mean() == 1
