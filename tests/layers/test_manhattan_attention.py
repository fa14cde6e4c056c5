"""ManhattanAttention: the published code's numbers, the paper's identities, and its memory."""

import itertools
from functools import partial

import pytest
import torch

from benchmarks.reference.manhattan_attention import plain_manhattan_attention
from mmseg_ext.layers import ManhattanAttention, ManhattanBlock, SelfAttention
from tests.models import OnGPU, Operators
from tests.parity import assert_same_function

FORMS = [(decomposed, decay) for decomposed in (True, False) for decay in ("logit", "product")]


def attention(**changes) -> ManhattanAttention:
    return ManhattanAttention(**{"embed_dim": 24, "num_heads": 3, **changes}).double()


def maps(batch: int = 2, height: int = 5, width: int = 7) -> torch.Tensor:
    return torch.randn(batch, height, width, 24, dtype=torch.float64)


@pytest.mark.parametrize("decay", ["logit", "product"])
def test_full_attention_is_the_printed_equation(decay):
    """(softmax(Q K^T) * D) V literally; 'logit' is the same with the rows renormalised."""
    layer = attention(decomposed=False, decay=decay, lce=False, rotary=False)
    x = maps()
    projected = (project(x) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k, v = (y.flatten(1, 2).unflatten(-1, (3, -1)).transpose(1, 2) for y in projected)
    weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
    places = list(itertools.product(range(5), range(7)))
    distances = [[abs(a - c) + abs(b - d) for c, d in places] for a, b in places]
    gamma = torch.tensor([1 - 2 ** -(2 + 4 * i / 3) for i in range(3)], dtype=torch.float64)
    weights = weights * gamma[:, None, None] ** torch.tensor(distances)  # (B, n, L, L)
    mass = weights.sum(-1, keepdim=True)
    assert mass.max() < 0.95
    if decay == "logit":
        weights = weights / mass
    expected = layer.out_proj((weights @ v).transpose(1, 2).reshape(x.shape))
    assert torch.allclose(layer(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("decomposed", "decay"), FORMS)
@pytest.mark.parametrize("size", [(5, 7), (17, 19)], ids=["one slice", "slices"])
def test_equals_the_plain_formulation(decomposed, decay, size):
    """Slices of 256 queries do not divide the 323 positions of the larger map."""
    layer = attention(decomposed=decomposed, decay=decay)
    plain = lambda twin: partial(plain_manhattan_attention, twin)  # noqa: E731
    assert_same_function(layer, plain, maps(2, *size), 1e-10)


def test_hidden_width_of_a_block():
    assert ManhattanBlock(12, 2, 2.5).ffn.fc1.out_features == 30


@pytest.mark.parametrize("decomposed", [True, False])
def test_operators(decomposed):
    """Attention is fused, and decays and phases are built on the device.

    A copy from the host would wait for the GPU. The meta device shows copies without a GPU.
    """
    layer = attention(decomposed=decomposed)
    with Operators() as fused:
        layer(maps()).sum().backward()
    kernel = "_scaled_dot_product_flash_attention_for_cpu"
    assert {kernel, f"{kernel}_backward"} <= fused.names.keys()
    assert not fused.names.keys() & {"_softmax", "_safe_softmax", "bmm", "softmax"}
    layer, x = layer.to("meta"), maps(1, 3, 31).to("meta")
    with Operators() as operators:
        layer(x)
    assert not operators.on_host and {"cos", "log1p"} <= operators.names.keys()


@pytest.mark.parametrize(("decomposed", "decay"), [*FORMS, (True, None)])
@pytest.mark.parametrize("size", [(5, 7), (17, 19)], ids=["one slice", "slices"])
def test_layers_share_terms(decomposed, decay, size):
    layer, x = attention(decomposed=decomposed, decay=decay), maps(2, *size)
    with Operators() as operators:
        out = layer(x, attention(decomposed=decomposed, decay=decay).position_terms(x))
    assert torch.equal(out, layer(x)) and operators.names["log1p"] <= 1


@pytest.mark.parametrize("size", [(5, 7), (129, 64)], ids=["columns as heads", "copies"])
def test_images_of_a_batch_are_independent(size):
    """Along H, several images of a small map have all columns as heads, without copies."""
    layer, x = attention(), maps(2, *size)
    with Operators() as operators:
        out = layer(x)
    assert (operators.names["repeat"] > 0) == (size == (5, 7))
    alone = torch.cat([layer(image) for image in x.split(1)])
    assert torch.allclose(out, alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [(32, 32), (64, 128)], ids=["one slice", "slices"])
def test_slices_on_a_gpu_have_the_size_of_a_bias(size):
    """1,024 positions of 8 heads are one slice of 32 MiB, 8,192 positions 32 slices of 64 MiB."""
    with Operators() as operators, torch.device("meta"):
        layer = ManhattanAttention(64, 8, decomposed=False)
        layer(torch.zeros(1, *size, 64)).sum().backward()
    forward = 1 if size == (32, 32) else 32
    again = 0 if forward == 1 else forward
    softmax = operators.names["_safe_softmax"] + operators.names["_softmax"]  # by torch's version
    assert softmax == forward + again
    assert operators.largest <= 64 * 2**20


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [(ManhattanAttention(24, 3), (1, 5, 7, 24)), (SelfAttention(24, 3), (1, 7, 24))],
    ids=["Manhattan", "self-attention"],
)
def test_cudnn_attention_is_off_on_a_gpu(monkeypatch, layer, shape, enabled):
    """Its gradients can be NaN (pytorch#196678). The setting of the process does not change."""
    kernel, seen = torch.nn.functional.scaled_dot_product_attention, []

    def recorded(*args, **kwargs):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return kernel(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, kernel.__name__, recorded)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
        layer(torch.zeros(shape).as_subclass(OnGPU))
        assert seen and not any(seen) and torch.backends.cuda.cudnn_sdp_enabled() == enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("decay", ["logit", "product"])
def test_never_holds_a_map_of_all_heads(decay):
    """40x40 positions, 4 heads: L x L x heads is 41 MB, the largest tensor 1/6 of it.

    What stays for the backward pass is not larger than the image.
    """
    layer = ManhattanAttention(16, 4, decomposed=False, decay=decay)
    x = torch.randn(1, 40, 40, 16, requires_grad=True)
    saved = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with Operators() as operators, keep:
        layer(x).sum().backward()
    assert 4 * x.numel() < operators.largest <= 4 * 4 * 256 * 1600
    assert max(t.untyped_storage().nbytes() for t in saved) <= 4 * x.numel()
