"""ExternalAttention2d against its fixture, the paper's equations, and its faster forms."""

import pytest
import torch
from torch import nn

from benchmarks.reference.external_attention import PlainExternalAttention2d
from mmseg_ext import fuse_model
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.layers import ExternalAttention2d
from tests.models import assert_same
from tests.parity import assert_same_function


def trained_like(channels=48, memory_size=8, **kwargs) -> ExternalAttention2d:
    """A block whose norm and biases are not at their trivial initial values."""
    block = ExternalAttention2d(channels, memory_size, **kwargs)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in block.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    norm = block.conv2[1]
    if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
        norm.running_mean.normal_(0, 0.1, generator=generator)
        norm.running_var.uniform_(0.5, 1.5, generator=generator)
    return block


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4, channels)


def batch_norm_without_statistics(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def plain_batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, affine=False)


class ShiftedBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 0.5


VARIANTS = [
    {},
    {"normalization": "softmax"},
    {"tied": True},
    {"norm_layer": group_norm},
    {"norm_layer": batch_norm_without_statistics},
    {"norm_layer": plain_batch_norm},
    {"norm_layer": ShiftedBatchNorm},
    {"norm_layer": nn.SyncBatchNorm},
]


def variant_name(variant: dict) -> str:
    return ", ".join(getattr(v, "__name__", f"{k}={v}") for k, v in variant.items()) or "default"


@pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
@pytest.mark.parametrize("size", [(9, 11), (2, 2)], ids=["composed", "published order"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_equals_the_equations(variant, size, training):
    if training and variant.get("norm_layer") is nn.SyncBatchNorm:
        pytest.skip("torch's SyncBatchNorm trains on GPUs only")
    block = trained_like(**variant).train(training).double()
    x = torch.randn(2, 48, *size, dtype=torch.float64)
    assert_same_function(block, PlainExternalAttention2d, x)


@pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
@pytest.mark.parametrize("size", [(9, 11), (2, 2)])
@torch.no_grad()
def test_fused_equals_eval(variant, size):
    block = trained_like(**variant).eval().double()
    x = torch.randn(2, 48, *size, dtype=torch.float64)
    assert_same(fuse_model(nn.Sequential(block))(x), block(x), rtol=1e-12)
    assert block.conv2[0].weight.requires_grad  # the original is untouched


def test_synchronized_statistics_are_the_groups(monkeypatch):
    """In training the norm is called, which knows the other processes; here one with other maps."""
    others = 3 * torch.randn(2, 48, 9, 11)

    def forward(self, y):
        together = torch.cat([y, others])
        return nn.functional.batch_norm(together, None, None, self.weight, self.bias, True)[
            : len(y)
        ]

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
