"""What a training says at its start, and the best checkpoint by the score of a class."""

import pytest
from mmengine.config import Config
from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from torch import nn

from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.engine.run_checks import unused_custom_keys
from mmseg_ext.engine.run_record import describe_groups
from mmseg_ext.errors import LaunchError, RunError
from tests.engine.runs import log_text, train_here, write_config
from tests.engine.states import logged
from tests.messages import check_message, lines_with, raises_message

SETTINGS = """
model["decode_head"]["loss_decode"] = [
    dict(type="CrossEntropyLoss"),
    dict(type="DiceLoss", loss_weight=0.1),
    dict(type="TverskyLoss", alpha=0.5, beta=0.5),
]
optim_wrapper["paramwise_cfg"] = dict(
    custom_keys={"encoder": dict(lr_mult=0), "decode_head": dict(lr_mult=3, decay_mult=0)}
)
val_evaluator["type"] = "CheckedIoUMetric"
custom_hooks = [dict(type="EarlyStoppingHook", monitor="IoU.a", rule="greater")]
default_hooks["checkpoint"]["save_best"] = ["mIoU", "IoU.b"]
train_cfg.update(max_iters=4, val_interval=2)
"""


def test_a_run_names_what_has_no_effect_and_keeps_the_best_of_a_class(tmp_path):
    """Early stopping also gets the score of a class."""
    config, work = write_config(tmp_path, SETTINGS), tmp_path / "work"
    train_here(config, work)
    log = log_text(work)
    (line,) = lines_with(log, "optim_wrapper.paramwise_cfg.custom_keys:")
    assert "'encoder'" in line
    (line,) = lines_with(log, "DiceLoss", "ignore_index=255")
    assert "model.decode_head.loss_decode: " in line
    runner = build_train_runner(str(config), {}, str(tmp_path / "other"))
    head = sum(p.numel() for p in runner.model.decode_head.parameters())
    rest = sum(p.numel() for p in runner.model.backbone.parameters())
    assert lines_with(log, "0.3:", f"{head:,}", 0) and lines_with(log, "0.1:", f"{rest:,}", 0.0001)
    # The last words are those of mmengine's warning.
    assert len(logged(work, "IoU.a")) == 2 and "Skip early stopping" not in log
    scores = {step: row["IoU.b"] for step, row in logged(work, "IoU.b").items()}
    best = max(scores, key=lambda step: scores[step])
    assert [p.name for p in work.glob("best_IoU.b_*")] == [f"best_IoU.b_iter_{best}.pth"]


def test_a_score_of_a_class_that_does_not_exist_is_named(tmp_path):
    config, options = write_config(tmp_path, SETTINGS), {"val_evaluator.class_scores": ["IoU.x"]}
    with pytest.raises(LaunchError, match=r"^val_evaluator\.class_scores='IoU\.x'.*IoU\.a"):
        build_train_runner(str(config), options, str(tmp_path / "work"))
    key = "default_hooks.checkpoint.save_best"
    with raises_message(LaunchError, "IoU.a", where=f"{key}='IoU.x': ", todo=True):
        build_train_runner(str(config), {key: "IoU.x"}, str(tmp_path / "work"))


def test_mmsegmentations_layer_wise_rates_are_for_other_backbones(tmp_path):
    """Its constructors raise an error without text."""
    settings = "optim_wrapper.update(constructor='LearningRateDecayOptimizerConstructor', "
    settings += "paramwise_cfg=dict(decay_rate=0.9, num_layers=6))\n"
    with raises_message(LaunchError, todo="paramwise_cfg.custom_keys"):
        train_here(write_config(tmp_path, settings), tmp_path / "work")


def test_a_class_without_a_score_is_one_warning(tmp_path):
    """It is in no label map, and the head cannot predict it; there are two validations."""
    settings = "dataset['metainfo'].update(classes=tuple('abcd'), palette=[[0] * 3] * 4)\n"
    settings += "default_hooks['checkpoint']['save_best'] = ['IoU.a', 'IoU.d']\n"
    train_here(write_config(tmp_path, SETTINGS + settings), work := tmp_path / "work")
    (line,) = (line for line in log_text(work).splitlines() if "is NaN" in line)
    assert "save_best: IoU.d is NaN" in line and list(work.glob("best_IoU.a_*"))
    assert not list(work.glob("best_IoU.d_*"))


def test_padding_that_is_no_class_is_named(tmp_path):
    runner = build_train_runner(
        str(write_config(tmp_path)),
        {"model.decode_head.ignore_index": 0, "model.data_preprocessor.size": (40, 40)},
        str(tmp_path / "work"),
    )
    with raises_message(RunError, "[255]", todo="seg_pad_val=0"):
        runner.train()


def test_groups_and_keys():
    """Of one or several optimizers; frozen parameters and equal groups do not count."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    model.scale = nn.Parameter(model[1].weight[0])
    keys = {"custom_keys": {key: {"lr_mult": 2.0} for key in (".scale", "1.w", "2.")}}
    wrapper = {"optimizer": {"type": "SGD", "lr": 0.1}, "paramwise_cfg": keys}
    (warning,) = unused_custom_keys(Config({"optim_wrapper": wrapper}), model)
    place = "optim_wrapper.paramwise_cfg.custom_keys: '2.' "
    check_message(warning, where=place, todo="'scale'")
    check_message(warning, todo="'1.weight'")
    assert [*unused_custom_keys(Config({"optim_wrapper": None}), model)] == []
    named = {"optim_wrapper": {"paramwise_cfg": {"custom_keys": "head"}}}
    with raises_message(LaunchError, where="optim_wrapper.paramwise_cfg.custom_keys='head': "):
        list(unused_custom_keys(Config(named), model))
    one = build_optim_wrapper(model, dict(wrapper))
    expected = [
        "learning rate 0.2: 12 parameters with decay 0",
        "learning rate 0.1: 16 parameters with decay 0",
    ]
    assert describe_groups(one) == expected
    other = build_optim_wrapper(
        model, {"optimizer": {"type": "SGD", "lr": 0.1, "weight_decay": 0.5}}
    )
    assert describe_groups(other) == []
    expected[1] += ", 28 parameters with decay 0.5"
    assert describe_groups(OptimWrapperDict(one=one, other=other)) == expected
