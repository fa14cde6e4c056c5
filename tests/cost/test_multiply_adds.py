"""Multiply-adds: what is counted, and that it is the same on every device."""

import pytest
import torch
from mmseg.registry import MODELS

from mmseg_ext.cost.model_cost import count_multiply_adds, lambda_multiply_adds
from mmseg_ext.layers import LambdaLayer


@pytest.mark.parametrize("side", [12, 50])  # the direct and the Fourier way
@pytest.mark.parametrize("training", [False, True])
def test_lambda_layer_counts_as_its_dense_form(side, training):
    with torch.device("meta"):
        layer = LambdaLayer(8, 12).train(training)
        counted = count_multiply_adds(torch.nn.Sequential(layer), torch.empty(3, 8, side, side))
    projection = 3 * side**2 * layer.qkv.weight.numel()
    assert counted.modules == projection
    assert counted.all == projection + 3 * lambda_multiply_adds(layer, side**2)


def test_multiply_adds_of_one_lambda_layer():
    """k v (u r^2 + h) per position for position lambdas, k v (u + h) for content."""
    layer = LambdaLayer(64)
    assert lambda_multiply_adds(layer, 56**2) == 3136 * 256 * ((1 + 4) + (529 + 4))


def test_a_shared_layer_counts_each_time():
    layer = torch.nn.Conv2d(2, 2, 3, padding=1, bias=False)
    counted = count_multiply_adds(torch.nn.Sequential(layer, layer), torch.ones(1, 2, 5, 4))
    assert counted == (2 * 36 * 20, 2 * 36 * 20)


@pytest.mark.parametrize(
    "config",
    [
        {"type": "RMT", "arch": "tiny"},
        {"type": "DeepViT", "re_attention": False, "arch": {"depth": 2}},
        {"type": "DeepViT", "arch": {"depth": 2}},
        {"type": "LambdaResNet", "depth": (1, 1, 1, 1)},
    ],
)
def test_counts_are_the_same_on_cpu_and_meta(config):
    counts = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = MODELS.build(config).eval()
            counts.append(count_multiply_adds(model, torch.randn(1, 3, 64, 96)))
    assert counts[0] == counts[1]
