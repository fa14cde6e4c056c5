"""Settings that would fail at the first validation, or train something else, are found first."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from mmengine.dataset import ConcatDataset

from mmseg_ext.engine.build import build_test_runner, build_train_runner
from mmseg_ext.engine.run_checks import (
    SameData,
    dataset_warnings,
    incomplete_splits,
    misfitting_schedules,
)
from mmseg_ext.errors import LaunchError
from tests.engine.runs import log_text, write_config
from tests.messages import check_message, raises_message


@pytest.mark.parametrize(
    ("key", "value", "start"),
    [
        ("train_cfg.val_interval", 0, "train_cfg.val_interval=0: "),
        ("val_dataloader.sampler.type", "InfiniteSampler", "val_dataloader.sampler: InfiniteSampl"),
        ("default_hooks.checkpoint.save_best", "mDice", "{key}='mDice': "),
        ("val_evaluator.iou_metrics", ["mIuO"], "{key}=['mIuO']: "),
        ("val_dataloader.dataset.img_suffix", ".tiff", "val_dataloader.dataset: has no images (v"),
        ("train_dataloader.dataset.indices", [], "train_dataloader.dataset: has no images (train"),
    ],
)
def test_what_would_fail_later_is_refused(tmp_path, key, value, start):
    with pytest.raises(LaunchError) as refusal:
        build_train_runner(str(write_config(tmp_path)), {key: value}, str(tmp_path / "work"))
    line = str(refusal.value)
    assert line.startswith(start.format(key=key)) and "\n" not in line


def test_a_test_takes_what_only_a_training_refuses_and_any_datasets_and_metrics(tmp_path):
    """Datasets inside others get the pipeline of --tta, and some metrics write no label maps."""
    extra = "test_dataloader = dict(val_dataloader)\n"
    extra += "test_dataloader['dataset'] = dict(type='ConcatDataset', datasets=2 * [dataset])\n"
    extra += f"dump = dict(type='DumpResults', out_file_path={str(tmp_path / 'dump.pkl')!r})\n"
    extra += "test_evaluator = [val_evaluator, dump]\ntrain_cfg['val_interval'] = 0\n"
    config, weights = write_config(tmp_path, extra), tmp_path / "weights.pth"
    weights.write_bytes(b"")
    words = [str(config), str(weights), {}, str(tmp_path / "work"), "none", True]
    runner = build_test_runner(*words, out=str(tmp_path / "out"))
    loop = runner.test_loop
    assert [len(one.pipeline.transforms) for one in loop.dataloader.dataset.datasets] == [2, 2]
    assert loop.evaluator.metrics[0].output_dir == str(tmp_path / "out")
    words[2] = {"test_evaluator": [{"type": "BoundaryMetric"}]}
    with raises_message(LaunchError, where="--out: ", todo="IoUMetric"):
        build_test_runner(*words, out=str(tmp_path / "out"))
    words[2] = {"test_evaluator": [{"type": "IoUMetrik"}]}
    with raises_message(LaunchError, "IoUMetrik", where="test_evaluator", todo="IoUMetric"):
        build_test_runner(*words, out=str(tmp_path / "out"))
    runner.test_loop.dataloader = SimpleNamespace(dataset=[0])  # which names no classes
    checkpoint = {"meta": {"dataset_meta": {"classes": ["a"]}}}
    SameData("test_loop").after_load_checkpoint(runner, checkpoint)


def test_epochs_without_a_batch_are_refused(tmp_path):
    """Eight images, a batch of nine, and drop_last: mmengine divides by zero."""
    epochs = "train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2)\n"
    epochs += "train_dataloader.update(batch_size=9, sampler=dict(type='DefaultSampler'))\n"
    config = str(write_config(tmp_path, epochs))
    assert len(build_train_runner(config, {}, str(tmp_path / "a")).train_dataloader) == 1
    with raises_message(LaunchError, 8, where="train_dataloader: ", todo="drop_last=False"):
        build_train_runner(config, {"train_dataloader.drop_last": True}, str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("schedules", "told"),
    [
        ("dict(type='PolyLR', end=12, by_epoch=False)", ""),
        ("dict(type='LinearLR', end=2, by_epoch=False)", ""),  # warms up, and stays
        ("dict(type='ConstantLR', factor=1.0, by_epoch=False)", ""),
        ("dict(type='PolyLR', eta_min=1e-4, end=6, by_epoch=False)", ""),
        ("dict(type='PolyLR', end=6, by_epoch=False)", "PolyLR ends at 6 of 12"),
        ("dict(type='CosineAnnealingLR', T_max=6, end=6, by_epoch=False)", "the last 6 train"),
        ("dict(type='PolyLR', end=160000, by_epoch=False)", "--iterations 12"),
        ("dict(type='MultiStepLR', milestones=[8], end=40, by_epoch=False)", "40 of 12"),
        ("dict(type='PolyLR', end=12)", "set by_epoch=False"),
    ],
)
def test_schedules_of_another_length_are_warnings(tmp_path, schedules, told):
    config = write_config(tmp_path, f"param_scheduler = [{schedules}]\n")
    runner = build_train_runner(str(config), {}, str(tmp_path / "work"))
    lines = [*misfitting_schedules(runner)]
    assert len(lines) == bool(told) and all(told in line for line in lines)
    assert all(line in log_text(tmp_path / "work") for line in lines)


def test_scaled_schedules_have_no_warning(tmp_path):
    """Of epochs, and of a few iterations, which are rounded up."""
    for iterations in (1, 2, 5):
        runner = build_train_runner("ea_r18_shapes", {}, str(tmp_path), iterations=iterations)
        assert not [*misfitting_schedules(runner)]
    extra = "train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=4)\n"
    extra += "train_dataloader['sampler'] = dict(type='DefaultSampler', shuffle=True)\n"
    extra += "param_scheduler = [dict(type='PolyLR', end=8)]\n"
    runner = build_train_runner(str(write_config(tmp_path, extra)), {}, str(tmp_path / "work"))
    assert ["8 of 4 epochs" in line for line in misfitting_schedules(runner)] == [True]


@pytest.mark.parametrize(
    ("save_best", "object_class", "told"),
    [("objects/F1", "b", None), ("IoU.b", "b", None)]
    + [("mDice", "b", "objects/F1"), ("mIoU", "cell", "a, b, c")],
)
def test_scores_of_objects_are_checked_at_the_start(tmp_path, save_best, object_class, told):
    metrics = [{"type": "CheckedIoUMetric"}, {"type": "ObjectMetric", "object_class": object_class}]
    config = write_config(tmp_path, f"val_evaluator = {metrics}\n")
    options = {"default_hooks.checkpoint.save_best": save_best}
    if told is None:
        runner = build_train_runner(str(config), options, str(tmp_path / "work"))
        names = runner.val_loop.evaluator.metrics[0].class_scores
        assert names == [save_best] * (save_best == "IoU.b")
        return
    with pytest.raises(LaunchError, match=told):
        build_train_runner(str(config), options, str(tmp_path / "work"))


def test_a_split_with_few_images_is_a_warning(tmp_path):
    """A dry run on a part of the images; a split without a count is anyone's own."""
    config = write_config(tmp_path, "image_counts = dict(train=20210, val=8)\n")
    runner = build_train_runner(str(config), {}, str(tmp_path / "work"))
    (line,) = incomplete_splits(runner)
    check_message(line, "8 of 20,210 images", where="train_dataloader: ", todo="docs/data.md")
    assert line in log_text(tmp_path / "work")


def test_classes_that_a_loss_does_not_learn_are_warnings(tmp_path):
    """mmsegmentation trains with both."""
    loss = {"type": "LovaszLoss", "reduction": "none", "class_weight": [1.0] * 7}
    options = {"model.decode_head.loss_decode": loss, "model.decode_head.ignore_index": 2}
    runner = build_train_runner(str(write_config(tmp_path)), options, str(tmp_path / "work"))
    ignored, weights = dataset_warnings(runner)
    assert ignored == "model.decode_head.ignore_index=2: this class is not trained"
    assert weights == "model.decode_head.loss_decode.class_weight: 7 numbers for 3 classes"


def test_datasets_that_do_not_fit_are_warnings(tmp_path):
    options = {"model.decode_head.num_classes": 4}
    options["val_dataloader.dataset.reduce_zero_label"] = True
    runner = build_train_runner(str(write_config(tmp_path)), options, str(tmp_path / "work"))
    log = log_text(tmp_path / "work")
    assert "decode_head.num_classes=4, but a dataset has 3 classes" in log
    assert log.count("reduce_zero_label is True in one dataset") == 1
    assert "name their classes differently" not in log
    names = runner.val_loop.dataloader.dataset.metainfo["classes"]
    runner.val_loop.dataloader.dataset._metainfo["classes"] = names[::-1]
    assert "the datasets name their classes differently" in dataset_warnings(runner)[1]
    several = ConcatDataset([runner.train_loop.dataloader.dataset.inner])
    loops = {"_train_loop": several, "_val_loop": runner.val_loop.dataloader.dataset}
    loops = {k: Mock(dataloader=Mock(dataset=dataset)) for k, dataset in loops.items()}
    wrapped = SimpleNamespace(model=runner.model, _test_loop=None, **loops)
    assert dataset_warnings(wrapped) == dataset_warnings(runner)
    last = torch.nn.Module()
    last.num_classes = 3
    runner.model.decode_head = torch.nn.ModuleList([runner.model.decode_head, last])
    assert not any("num_classes" in warning for warning in dataset_warnings(runner))
