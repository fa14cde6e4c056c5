"""External attention on tokens: fixture, the paper's equations, fused form, precisions, hooks."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from benchmarks.reference.external_attention import (
    PlainExternalAttention,
    PlainMultiHeadExternalAttention,
    double_normalized,
)
from mmseg_ext import fuse_model
from mmseg_ext.layers import ExternalAttention, MultiHeadExternalAttention
from tests.models import assert_autocast_close
from tests.parity import assert_parity, gradient_difference

# Composed maps pay, but for memories wider than the heads (last).
CASES = [
    {"embed_dim": 32, "num_heads": 2, "memory_size": 16},
    {"embed_dim": 24, "num_heads": 3, "expansion": 2, "memory_size": 5},
    {"embed_dim": 24, "num_heads": 6, "expansion": 1, "memory_size": 32},
]


def build(case: dict) -> MultiHeadExternalAttention:
    block = MultiHeadExternalAttention(**case)
    for p in block.parameters():
        nn.init.normal_(p, std=0.5)
    return block


def two_memories() -> ExternalAttention:
    block = ExternalAttention(12, memory_size=5)
    nn.init.normal_(block.mk.weight)
    nn.init.normal_(block.mv.weight)
    return block


@pytest.mark.parametrize("case", [*CASES, None])
def test_equals_the_equations(case):
    """Equations 7, 8, 10, 11 and nothing else; for the multi-head form head by head."""
    block = build(case) if case else two_memories()
    plain_class = PlainMultiHeadExternalAttention if case else PlainExternalAttention
    plain = plain_class(copy.deepcopy(block))
    x = torch.randn(2, 17, block.embed_dim)
    ours, theirs = block(x), plain(x)
    assert_parity(ours, theirs)
    weights = torch.randn_like(theirs)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert gradient_difference(block, plain.layer) <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_fused_form(case):
    block, x = build(case), torch.randn(2, 17, case["embed_dim"])
    fused = fuse_model(block)
    with torch.no_grad():
        assert_parity(fused(x), block(x))
    wider_than_heads = case["memory_size"] * case["num_heads"] > case["embed_dim"]
    assert isinstance(fused, MultiHeadExternalAttention) == wider_than_heads


@pytest.mark.parametrize("name", ["trans_dims", "linear_0", "linear_1", "proj"])
@pytest.mark.parametrize("hangs", ["hook", "parametrization"])
def test_fused_form_keeps_attached_hooks(name, hangs):
    block, x = build(CASES[0]).eval(), torch.randn(2, 17, 32)
    module = getattr(block, name)
    without = block(x)
    if hangs == "hook":
        module.register_forward_pre_hook(lambda module, args: (args[0] + args[0].square(),))
    else:
        parametrizations.spectral_norm(module)
    expected = block.eval()(x)
    assert (expected - without).abs().max() > 1e-3 * without.abs().max()
    fused = block.train().fuse()
    assert fused is not block and not fused.training
    for form in (fused, fuse_model(block)):
        assert_parity(form(x), expected)


def test_dropout_of_the_attention_is_applied_before_the_values():
    block = MultiHeadExternalAttention(24, 3, expansion=2, memory_size=5, attn_drop=0.5).train()
    x = torch.randn(2, 17, 24)
    torch.manual_seed(3)
    y = block(x)
    torch.manual_seed(3)
    logits = block.linear_0(block.trans_dims(x).unflatten(-1, (6, 8)))  # (B, N, G, S)
    attention = double_normalized(logits.transpose(1, 2)).transpose(1, 2)
    attention = F.dropout(attention.contiguous(), 0.5)
    assert_parity(y, block.proj(block.linear_1(attention).flatten(2)))
    assert_parity(block.eval()(x), PlainMultiHeadExternalAttention(block)(x))


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


@pytest.mark.parametrize("fused", [False, True])
def test_autocast(fused):
    block = build(CASES[0])
    x = torch.randn(2, 60, 32)
    assert_autocast_close(block.fuse() if fused else block, lambda m: m(x))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"embed_dim=30 .* num_heads=4"):
        MultiHeadExternalAttention(30, 4)


def test_hint_for_maps():
    with pytest.raises(ValueError, match=r"x.flatten\(2\).transpose\(1, 2\)$"):
        ExternalAttention(32)(torch.zeros(2, 32, 4, 4))
