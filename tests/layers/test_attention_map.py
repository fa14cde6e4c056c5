"""`attention_map` returns the weights that multiply the values of each layer."""

import pytest
import torch
from torch import Tensor, nn

from mmseg_ext import layers
from tests.models import assert_same, randomise


def ready(layer: nn.Module) -> nn.Module:
    return randomise(layer).double().eval()


def maps(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_external_attention_2d():
    layer, x = ready(layers.ExternalAttention2d(12, memory_size=7)), maps(2, 12, 5, 6)
    weights = layer.attention_map(x)
    torch.testing.assert_close(weights.sum(1), torch.ones(2, 5, 6).double())
    values = torch.einsum("cs,bshw->bchw", layer.linear_1.weight[..., 0], weights)
    assert_same(torch.relu(layer.conv2(values) + x), layer(x), rtol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float().attention_map(x).dtype == torch.float32


def test_external_attention_on_tokens():
    x = maps(2, 7, 12)
    layer = ready(layers.ExternalAttention(12, memory_size=5))
    assert_same(layer.attention_map(x) @ layer.mv.weight.t(), layer(x), rtol=1e-10)
    layer = ready(layers.MultiHeadExternalAttention(12, 2, expansion=2, memory_size=5))
    weights = layer.attention_map(x)
    assert weights.shape == (2, 4, 7, 5)
    values = weights @ layer.linear_1.weight.t() + layer.linear_1.bias  # (B, G, N, C / heads)
    assert_same(layer.proj(values.transpose(1, 2).flatten(2)), layer(x), rtol=1e-10)


@pytest.mark.parametrize("decay", ["logit", "product", None])
@pytest.mark.parametrize("decomposed", [True, False])
def test_manhattan_attention(decay, decomposed):
    layer = ready(layers.ManhattanAttention(12, 3, decomposed=decomposed, decay=decay, lce=False))
    x = maps(2, 4, 5, 12)
    weights = layer.attention_map(x)
    values = layer.v_proj(x).flatten(1, 2).unflatten(-1, (3, -1)).transpose(1, 2)  # (B, n, N, d)
    y = (weights @ values).transpose(1, 2).reshape(2, 4, 5, 12)
    assert_same(layer.out_proj(y), layer(x), rtol=1e-10)
    assert_same(layer.attention_map(x, (2, 3)), weights[:, :, 13:14], rtol=1e-10)


LAMBDAS = [
    dict(receptive_field=5, position_bias=True),
    dict(receptive_field=3, dilation=2, intra_depth=2),
    dict(receptive_field=None, resolution=(5, 7)),
]


@pytest.mark.parametrize("options", LAMBDAS)
def test_lambda_layer(options):
    layer = ready(layers.LambdaLayer(8, key_depth=4, num_heads=2, **options))
    x = maps(2, 8, 5, 6)
    weights = layer.attention_map(x)
    queries, _, values = layer.qkv(x).split(layer.channels, dim=1)
    values = layer.norm_v(values).flatten(2).unflatten(1, (layer.intra_depth, -1))  # (B, u, v, N)
    y = torch.einsum("bhunm,buvm->bhvn", weights, values)
    if layer.embeddings.bias is not None:
        queries = layer.norm_q(queries).flatten(2).unflatten(1, (2, -1))  # (B, h, k, N)
        y = y + torch.einsum("bhkn,k->bhn", queries, layer.embeddings.bias)[:, :, None]
    assert_same(y.flatten(1, 2).unflatten(2, (5, 6)), layer(x), rtol=1e-10)
    assert_same(layer.attention_map(x, (2, 3)), weights[:, :, :, 15:16], rtol=1e-10)


@pytest.mark.parametrize("kind", [layers.SelfAttention, layers.ReAttention])
def test_attention_between_tokens(kind):
    layer, x = ready(kind(12, 3)), maps(2, 7, 12)
    values = layer.qkv(x).unflatten(-1, (3, 3, -1))[:, :, 2].transpose(1, 2)  # (B, H, N, d)
    y = (layer.attention_map(x) @ values).transpose(1, 2).flatten(2)
    assert_same(layer.proj(y), layer(x), rtol=1e-10)
