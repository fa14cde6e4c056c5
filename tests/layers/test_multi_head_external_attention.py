"""Token external attention and its multi-head form: fixture, plain equations, fused form."""

import pytest
import torch
from torch import nn

from mmseg_ext import fuse_model
from mmseg_ext.layers import ExternalAttention, MultiHeadExternalAttention
from tests.models import assert_autocast_close
from tests.parity import Fixture, assert_parity, gradient_difference

# Composed maps pay for many tokens (first), never for memories wider than the heads (last).
CASES = [
    {"embed_dim": 32, "num_heads": 2, "memory_size": 16, "tokens": 40},
    {"embed_dim": 32, "num_heads": 2, "memory_size": 16, "tokens": 7},
    {"embed_dim": 24, "num_heads": 3, "expansion": 2, "memory_size": 5, "tokens": 33},
    {"embed_dim": 24, "num_heads": 6, "expansion": 1, "memory_size": 32, "tokens": 50},
]


def published_order(block: MultiHeadExternalAttention, x):
    """The published forward, operation by operation, on the parameters of `block`."""
    batch, tokens, _ = x.shape
    wide = block.trans_dims(x).view(batch, tokens, block.groups, -1).permute(0, 2, 1, 3)
    attention = block.linear_0(wide).softmax(dim=-2)
    attention = attention / (1e-9 + attention.sum(dim=-1, keepdim=True))
    out = block.linear_1(attention).permute(0, 2, 1, 3).reshape(batch, tokens, -1)
    return block.proj(out)


class Published(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return published_order(self.block, x)


def build(case: dict) -> tuple[MultiHeadExternalAttention, torch.Tensor]:
    case = dict(case)
    tokens = case.pop("tokens")
    block = MultiHeadExternalAttention(**case)
    for p in block.parameters():
        nn.init.normal_(p, std=0.5)
    return block, torch.randn(2, tokens, case["embed_dim"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("repeats", [1, 6])
@pytest.mark.parametrize("fused", [False, True])
def test_parity(dtype, repeats, fused):
    """Six copies of the batch make more tokens than channels: the composed form."""
    fixture = Fixture("eamlp_multi_head_external_attention_384")
    block = MultiHeadExternalAttention(fixture.meta["dim"], fixture.meta["num_heads"])
    block.load_state_dict(fixture.state_dict, strict=True)
    block = block.to(dtype)
    if fused:
        block = block.fuse()
    with torch.no_grad():
        y = block(fixture.inputs["x"].to(dtype).repeat(repeats, 1, 1))
    assert_parity(y, fixture.outputs["y"].repeat(repeats, 1, 1))


@pytest.mark.parametrize("case", CASES)
def test_equals_the_published_order(case):
    block, x = build(case)
    twin, _ = build(case)
    twin.load_state_dict(block.state_dict())
    published = Published(twin)
    ours, theirs = block(x), published(x)
    assert_parity(ours, theirs)
    weights = torch.randn_like(theirs)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert gradient_difference(block, twin) <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_fused_form(case):
    block, x = build(case)
    fused = fuse_model(block)
    with torch.no_grad():
        assert_parity(fused(x), published_order(block, x))
    wider_than_heads = case["memory_size"] * case["num_heads"] > case["embed_dim"]
    assert isinstance(fused, MultiHeadExternalAttention) == wider_than_heads


def test_biases_before_the_softmax_have_no_gradient():
    block, x = build(CASES[0])
    (block(x) * torch.randn_like(x)).sum().backward()
    largest = max(p.grad.abs().max() for p in block.parameters())
    assert block.trans_dims.bias.grad.abs().max() <= 1e-5 * largest
    assert block.linear_0.bias.grad.abs().max() <= 1e-5 * largest
    assert block.linear_1.bias.grad.abs().max() > 1e-3 * largest


def test_gradients_by_finite_differences():
    block = MultiHeadExternalAttention(6, 2, expansion=2, memory_size=3).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(block, (x,))
    block = ExternalAttention(6, memory_size=3).double()
    nn.init.normal_(block.mk.weight)
    nn.init.normal_(block.mv.weight)
    assert torch.autograd.gradcheck(block, (x,))


def test_token_form_is_the_equations():
    """Softmax down the tokens, L1 along the slots, two matrices, nothing else; eq. 7, 8, 10, 11."""
    block = ExternalAttention(12, memory_size=5).double()
    nn.init.normal_(block.mk.weight)
    nn.init.normal_(block.mv.weight)
    x = torch.randn(3, 17, 12, dtype=torch.float64)
    expected = []
    for sample in x:
        shares = torch.exp(sample @ block.mk.weight.T)  # (N, S)
        shares = shares / shares.sum(0)
        expected.append((shares / shares.sum(1, keepdim=True)) @ block.mv.weight.T)
    assert_parity(block(x), torch.stack(expected))
    assert sum(p.numel() for p in block.parameters()) == 2 * 12 * 5


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


@pytest.mark.parametrize("tokens", [7, 60])
def test_autocast(tokens):
    block, _ = build(CASES[0])
    x = torch.randn(2, tokens, 32)
    assert_autocast_close(block, lambda m: m(x))
    assert_autocast_close(block.fuse(), lambda m: m(x))


def test_parameter_count():
    """4 d^2 + 4 d widening, two 64 x 64 memories with biases, 4 d^2 + d back."""
    block = MultiHeadExternalAttention(384, 6)
    assert sum(p.numel() for p in block.parameters()) == 8 * 384**2 + 5 * 384 + 2 * (64 * 64 + 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embed_dim": 30, "num_heads": 4}, "embed_dim 30 .* num_heads 4"),
        ({"embed_dim": 32, "num_heads": 4, "memory_size": 0}, "memory_size .* 0"),
        ({"embed_dim": 32, "num_heads": 4, "memory_size": -3}, "memory_size .* -3"),
        ({"embed_dim": 32, "num_heads": 0}, "num_heads .* 0"),
        ({"embed_dim": 32, "num_heads": 4, "expansion": 0}, "expansion .* 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadExternalAttention(**arguments)


@pytest.mark.parametrize("memory_size", [0, -1])
def test_bad_memory_size_of_the_token_form(memory_size):
    with pytest.raises(ValueError, match=f"memory_size .* {memory_size}"):
        ExternalAttention(32, memory_size)


@pytest.mark.parametrize("shape", [(2, 5, 31), (5, 32), (2, 32, 4, 4)])
@pytest.mark.parametrize(
    "block", [ExternalAttention(32), MultiHeadExternalAttention(32, 4, memory_size=8)]
)
def test_bad_input(block, shape):
    for module in (block, fuse_model(block)):
        with pytest.raises(ValueError, match=rf"32\), got \({shape[0]}, "):
            module(torch.zeros(shape))
