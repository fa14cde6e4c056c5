"""Multiply-adds: what is counted, and the command."""

import copy

import pytest
import torch
from mmseg.registry import MODELS
from torch import nn

from mmseg_ext.commands import run
from mmseg_ext.cost.model_cost import count_multiply_adds, count_products
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ReAttention
from tests.configs import CONFIGS
from tests.models import NARROW_RMT


@pytest.mark.parametrize("side", [12, 50])  # the direct and the Fourier way
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("resolution", [None, (64, 64)])
def test_lambda_layer_counts_as_its_dense_form(side, training, resolution):
    """k v (u r^2 + h) per position for position lambdas, k v (u + h) for content."""
    with torch.device("meta"):
        window = 23 if resolution is None else None
        layer = LambdaLayer(64, receptive_field=window, resolution=resolution).train(training)
        counted = count_multiply_adds(nn.Sequential(layer), torch.empty(3, 64, side, side))
    positions, taps = 3 * side**2, 529 if window else side**2
    assert counted.modules == positions * layer.qkv.weight.numel()
    assert counted.all == counted.modules + positions * 256 * ((1 + 4) + (taps + 4))


def test_a_shared_layer_counts_each_time():
    layer = nn.Conv2d(2, 2, 3, padding=1, bias=False)
    counted = count_multiply_adds(nn.Sequential(layer, layer), torch.ones(1, 2, 5, 4))
    assert counted == (2 * 36 * 20, 2 * 36 * 20)
    assert count_multiply_adds(layer, torch.ones(1, 2, 5, 4)) == (36 * 20, 36 * 20)


def test_products_of_fused_attention_forward_and_backward():
    """Two products of 8 x 8 x 4; the backward pass repeats one and has four."""
    q, k, v = (torch.randn(1, 2, 8, 4, requires_grad=True) for _ in range(3))
    attended = lambda: nn.functional.scaled_dot_product_attention(q * 1, k * 1, v * 1)  # noqa: E731
    assert count_products(attended)[0] == 2 * 2 * 256
    assert count_products(lambda: attended().sum().backward())[0] == 7 * 2 * 256


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(ExternalAttention2d(32, 8), (2, 32, 6, 7)), (ReAttention(24, 4), (1, 600, 24))],
)
def test_modules_count_where_their_weights_are_used_without_a_call(layer, shape):
    layer, x = layer.to("meta").eval(), torch.empty(shape, device="meta")
    published = copy.deepcopy(layer)
    published.forward = published.published_order
    counted, called = (count_multiply_adds(model, x) for model in (layer, published))
    assert counted.modules == called.modules > 0
    weights = sum(p.numel() for p in layer.parameters() if p.ndim > 1)
    if isinstance(layer, ExternalAttention2d):
        assert counted.modules == called.all == 2 * 42 * weights > counted.all


@pytest.mark.parametrize(
    "config",
    [
        {"type": "RMT", "arch": NARROW_RMT},
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


def test_the_command_prints_one_row_for_each_config(capsys):
    configs = [str(CONFIGS / f"{name}_r18_shapes.py") for name in ("ea", "fcn")]
    assert run("model_cost", configs) == 0
    *_, alignment, ea, fcn = capsys.readouterr().out.splitlines()
    assert alignment == "| :-- | --: | --: | --: | --: |"
    assert ea == "| `ea_r18_shapes` | 96x96 | 0.97 | 0.15 | 0.15 |"
    assert fcn.startswith("| `fcn_r18_shapes` | 96x96 | 1.00 |")
    for size, status, line in (("(96,96)", 0, ea), ("None", 1, "has no crop_size")):
        size = f"model.data_preprocessor.size={size}"
        assert run("model_cost", [configs[0], "--cfg-options", "crop_size=None", size]) == status
        assert line in "".join(capsys.readouterr())
    assert run("model_cost", ["configs/none.py"]) == 1
    assert "configs/none.py" in capsys.readouterr().err
