"""`deterministic=True`: replacements with the same values, and our heads trained under it."""

import pytest
import torch
import torch.nn.functional as F
from mmseg.models.losses import CrossEntropyLoss
from torch import nn

from mmseg_ext.engine.randomness import (
    MatrixAvgPool2d,
    cross_entropy_of_pixels,
    make_deterministic,
)
from tests.engine.runs import train_here, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs


@pytest.mark.parametrize("size", [1, 6, (3, 5), (None, 4)])
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 7, 13)])
def test_pooling_is_the_adaptive_one(size, shape):
    x = torch.randn(shape, dtype=torch.float64)
    expected = F.adaptive_avg_pool2d(x, size)
    torch.testing.assert_close(MatrixAvgPool2d(size)(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("non_ignore", [False, True])
def test_loss_is_mmsegmentations(reduction, weighted, non_ignore):
    weights = [0.5, 1.0, 2.0] if weighted else None
    loss = CrossEntropyLoss(
        reduction=reduction, class_weight=weights, avg_non_ignore=non_ignore, loss_weight=0.4
    )
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    label = torch.randint(0, 3, (2, 4, 5))
    label[0, :2] = 255
    pixel = torch.rand(2, 4, 5)
    try:
        expected = loss(scores, label, pixel, ignore_index=255)
    except IndexError:
        assert weighted and reduction == "mean"
        pytest.skip("mmsegmentation's own loss indexes its class weights out of range")
    model = nn.Sequential(loss, nn.AdaptiveAvgPool2d(2))
    make_deterministic(model)
    assert loss.cls_criterion is cross_entropy_of_pixels
    assert type(model[1]) is MatrixAvgPool2d
    torch.testing.assert_close(
        loss(scores, label, pixel, ignore_index=255), expected, rtol=1e-12, atol=1e-12
    )


def test_training_under_it_twice_is_the_same(tmp_path):
    config = write_config(tmp_path, RANDOM + UNVALIDATED)
    try:
        for name in ("one", "two"):
            options = ("randomness.deterministic=True", "train_cfg.max_iters=4")
            train_here(config, tmp_path / name, *options)
            assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_runs(tmp_path / "one", tmp_path / "two", 4)
