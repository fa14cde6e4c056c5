"""External attention on tokens: fixture, the paper's equations, fused form, precisions, hooks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.reference.external_attention import (
    PlainExternalAttention,
    PlainMultiHeadExternalAttention,
    double_normalized,
)
from mmseg_ext import fuse_model
from mmseg_ext.layers import ExternalAttention, MultiHeadExternalAttention
from tests.parity import assert_parity, assert_same_function

MULTI_HEAD = [
    {"embed_dim": 32, "num_heads": 2, "memory_size": 16},
    {"embed_dim": 24, "num_heads": 3, "expansion": 2, "memory_size": 5},
    {"embed_dim": 24, "num_heads": 6, "expansion": 1, "memory_size": 32},
]


def tokens_for(block: nn.Module) -> torch.Tensor:
    """Tokens in float64; the block gets random parameters in float64."""
    for p in block.double().parameters():
        nn.init.normal_(p, std=0.5)
    return torch.randn(2, 17, block.embed_dim, dtype=torch.float64)


@pytest.mark.parametrize("case", MULTI_HEAD)
def test_equations_head_by_head(case):
    """Equations 7, 8, 10, 11 and nothing else; fused if the memories are not wider than heads."""
    block = MultiHeadExternalAttention(**case)
    x = tokens_for(block)
    assert_same_function(block, PlainMultiHeadExternalAttention, x)
    fused = fuse_model(block)
    with torch.no_grad():
        assert_parity(fused(x), block(x))
    wider_than_heads = case["memory_size"] * case["num_heads"] > case["embed_dim"]
    assert isinstance(fused, MultiHeadExternalAttention) == wider_than_heads


def test_equations_of_two_memories():
    block = ExternalAttention(12, memory_size=5)
    x = tokens_for(block)
    assert_same_function(block, PlainExternalAttention, x)


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


def test_hint_for_maps():
    with pytest.raises(ValueError, match=r"x.flatten\(2\).transpose\(1, 2\)$"):
        ExternalAttention(32)(torch.zeros(2, 32, 4, 4))
