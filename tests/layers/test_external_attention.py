"""External attention on maps and tokens: the paper's equations, faster forms, initialization."""

import time
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.reference.external_attention import (
    PlainExternalAttention,
    PlainExternalAttention2d,
    PlainMultiHeadExternalAttention,
    double_normalized,
)
from mmseg_ext.layers import ExternalAttention, ExternalAttention2d, MultiHeadExternalAttention
from tests.models import randomise, relative_error
from tests.parity import assert_parity, assert_same_function


def trained_like(**kwargs) -> ExternalAttention2d:
    """A block whose norm and biases are not at their trivial initial values."""
    block = randomise(ExternalAttention2d(48, memory_size=8, **kwargs))
    with torch.no_grad():
        for p in block.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return block


class ShiftedBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 0.5


VARIANTS = {
    "default": {},
    "softmax": {"normalization": "softmax"},
    "tied": {"tied": True},
    "group norm": {"norm_layer": partial(nn.GroupNorm, 4)},
    "without statistics": {"norm_layer": partial(nn.BatchNorm2d, track_running_stats=False)},
    "not affine": {"norm_layer": partial(nn.BatchNorm2d, affine=False)},
    "shifted": {"norm_layer": ShiftedBatchNorm},
    "synchronized": {"norm_layer": nn.SyncBatchNorm},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(9, 11), (2, 2)], ids=["composed", "published order"])
def test_equals_the_equations(variant, size):
    """In evaluation and in training, for which a synchronized norm that is called needs a GPU."""
    block = trained_like(**VARIANTS[variant]).eval().double()
    x = torch.randn(2, 48, *size, dtype=torch.float64)
    assert_same_function(block, PlainExternalAttention2d, x)
    if variant != "synchronized":
        assert_same_function(block.train(), PlainExternalAttention2d, x)


@pytest.mark.parametrize("train", [False, True])
def test_channels_last_in_bfloat16(train):
    """The order of the memory changes neither results nor gradients, and does not slow it down."""
    block = trained_like().train(train).bfloat16()

    def run(x):
        block.zero_grad()
        y = block(x.requires_grad_())
        start = time.thread_time()
        with torch.no_grad():
            block(x)
        duration = time.thread_time() - start
        y.square().sum().backward()
        return duration, (y, x.grad, *(p.grad for p in block.parameters()))

    x = torch.randn(8, 48, 64, 64).bfloat16()
    time_planes, planes = run(x.clone())
    time_pixels, pixels = run(x.to(memory_format=torch.channels_last))
    names = ["result", "input", *(name for name, _ in block.named_parameters())]
    for name, one, other in zip(names, planes, pixels, strict=True):
        if name == "conv1.bias":
            # The softmax cancels this bias, so its gradient is a sum of rounding errors.
            weight = planes[names.index("conv1.weight")]
            assert (one - other).abs().max() < 0.02 * weight.abs().max()
        else:
            assert relative_error(one, other) < 0.02
    assert time_pixels < 20 * time_planes + 0.02


@pytest.mark.parametrize("variant", ["default", "group norm"])
def test_a_float32_residual_is_not_rounded_under_autocast(variant):
    """The composed form is as accurate as the published order, whose sum is float32."""
    block, x = trained_like(**VARIANTS[variant]).eval(), torch.randn(2, 48, 9, 11)
    with torch.no_grad():
        for parameter in block.conv2[1].parameters():  # the residual is most of the sum
            parameter *= 0.01
        exact = block(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            published, y = block.published_order(x), block(x)
    bound = 2 * (published - exact).abs().max()
    assert y.dtype == torch.float32 and (y - exact).abs().max() <= bound


def test_initialization_is_the_published_one():
    block = ExternalAttention2d(512)
    assert torch.equal(block.linear_0.weight, block.linear_1.weight.transpose(0, 1))
    assert block.linear_0.weight.data_ptr() != block.linear_1.weight.data_ptr()
    expected = (2 / 512) ** 0.5
    for weight in (block.conv1.weight, block.conv2[0].weight, block.linear_0.weight):
        assert abs(weight.std().item() / expected - 1) < 0.03
        assert abs(weight.mean().item()) < 0.02 * expected
    assert block.conv1.bias.abs().max().item() <= 512**-0.5


@pytest.mark.parametrize(
    ("block", "plain"),
    [
        (MultiHeadExternalAttention(32, 2, memory_size=16), PlainMultiHeadExternalAttention),
        (MultiHeadExternalAttention(24, 3, 2, memory_size=5), PlainMultiHeadExternalAttention),
        (ExternalAttention(12, memory_size=5), PlainExternalAttention),
    ],
)
def test_equations_on_tokens(block, plain):
    """Equations 7, 8, 10, 11 and nothing else."""
    for p in block.double().parameters():
        nn.init.normal_(p, std=0.5)
    x = torch.randn(2, 17, block.embed_dim, dtype=torch.float64)
    assert_same_function(block, plain, x)


def test_dropout_is_applied_before_the_values_and_at_the_end():
    block = MultiHeadExternalAttention(24, 3, 2, memory_size=5, attn_drop=0.5, proj_drop=0.5)
    x = torch.randn(2, 17, 24)
    torch.manual_seed(3)
    y = block(x)
    torch.manual_seed(3)
    logits = block.linear_0(block.trans_dims(x).unflatten(-1, (6, 8)))  # (B, N, G, S)
    attention = double_normalized(logits.transpose(1, 2)).transpose(1, 2)
    attention = nn.functional.dropout(attention.contiguous(), 0.5)
    expected = block.proj(block.linear_1(attention).flatten(2))
    assert_parity(y, nn.functional.dropout(expected, 0.5))


def test_a_token_that_attends_nowhere_gives_zero():
    """Its softmax underflows in every slot: 0 / 0 without care."""
    block = ExternalAttention(4, memory_size=2)
    nn.init.ones_(block.mk.weight)
    x = torch.zeros(1, 6, 4)
    x[0, 0] = -1000.0
    y = block(x)
    assert torch.equal(y[0, 0], torch.zeros(4))
    y.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters())
