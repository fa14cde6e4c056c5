"""ExternalAttention2d against its fixture, the paper's equations, and its faster forms."""

from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.reference.external_attention import PlainExternalAttention2d
from mmseg_ext import fuse_model
from mmseg_ext.cost.model_cost import count_multiply_adds
from mmseg_ext.layers import ExternalAttention2d
from tests.models import assert_same, randomise
from tests.parity import assert_same_function


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
    """In evaluation, fused, and in training, for which torch's SyncBatchNorm needs a GPU."""
    block = trained_like(**VARIANTS[variant]).eval().double()
    x = torch.randn(2, 48, *size, dtype=torch.float64)
    assert_same_function(block, PlainExternalAttention2d, x)
    with torch.no_grad():
        assert_same(fuse_model(nn.Sequential(block))(x), block(x), rtol=1e-12)
    assert block.conv2[0].weight.requires_grad  # the original is untouched
    if variant != "synchronized":
        assert_same_function(block.train(), PlainExternalAttention2d, x)


def test_synchronized_statistics_are_the_groups(monkeypatch):
    """In training the norm is called, which knows the other processes; here one with other maps."""
    others = 3 * torch.randn(2, 48, 9, 11)

    def forward(self, y):
        all_maps = torch.cat([y, others])
        y = nn.functional.batch_norm(all_maps, None, None, self.weight, self.bias, True)
        return y[: len(all_maps) // 2]

    monkeypatch.setattr(nn.SyncBatchNorm, "forward", forward)
    block = trained_like(norm_layer=nn.SyncBatchNorm).train()
    x = torch.randn(2, 48, 9, 11)
    torch.testing.assert_close(block(x), block.published_order(x), rtol=1e-4, atol=1e-5)


def test_initialization_is_the_published_one():
    block = ExternalAttention2d(512)
    assert torch.equal(block.linear_0.weight, block.linear_1.weight.transpose(0, 1))
    assert block.linear_0.weight.data_ptr() != block.linear_1.weight.data_ptr()
    expected = (2 / 512) ** 0.5
    for weight in (block.conv1.weight, block.conv2[0].weight, block.linear_0.weight):
        assert abs(weight.std().item() / expected - 1) < 0.03
        assert abs(weight.mean().item()) < 0.02 * expected
    assert block.conv1.bias.abs().max().item() <= 512**-0.5


def test_attention_map_under_autocast_is_in_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trained_like().attention_map(torch.randn(2, 48, 3, 4)).dtype == torch.float32


def test_multiply_adds_of_composed_form():
    with torch.device("meta"):
        block = ExternalAttention2d(512).eval()
        x = torch.empty(1, 512, 128, 128)
        composed = count_multiply_adds(block, x).all
        plain = count_multiply_adds(PlainExternalAttention2d(block).eval(), x).all
        fused = count_multiply_adds(block.fuse(), x).all
    assert plain == 9_663_676_416
    assert fused == 2 * 64 * 512 * 128 * 128  # 1.07 G
    assert composed == fused + 2 * 64 * 512 * 512  # and the two compositions
