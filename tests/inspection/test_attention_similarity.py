"""Similarity of attention maps: constructed maps with known cosines, and each kind of layer."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from mmseg_ext.backbones import RMT, DeepViT
from mmseg_ext.inspection import attention_similarity
from mmseg_ext.layers import SelfAttention
from tests.messages import raises_message
from tests.models import assert_same, randomise

SMALL = {"embed_dims": 24, "depth": 4, "num_heads": 3}


def similarities_of(maps: torch.Tensor) -> list:
    """Measure a model whose layers have given maps (layers, heads, N, N)."""
    heads, tokens = maps.shape[1:3]
    layers = nn.Sequential(*(SelfAttention(heads, heads) for _ in maps))
    for layer, own in zip(layers, maps, strict=True):
        layer.attention_map = lambda x, own=own: own.expand(len(x), -1, -1, -1)
    model = nn.Sequential(OrderedDict(layers=layers))
    return attention_similarity(model, torch.zeros(2, tokens, heads))


def test_known_similarities():
    """First columns of head 0 at 0, 60 and 90 degrees in the three layers, all others at 0."""
    angles = torch.tensor([0.0, 60.0, 90.0]).deg2rad()
    maps = torch.tensor([1.0, 0.0])[:, None].repeat(3, 2, 1, 2)
    maps[:, 0, :, 0] = torch.stack([angles.cos(), angles.sin()], dim=1)
    (group,) = similarities_of(maps)
    # The second token's columns are equal, so a mean over tokens is (cosine + 1) / 2.
    cosine = (angles[:, None] - angles).cos()
    torch.testing.assert_close(group.between_layers[..., 0], (cosine + 1) / 2)
    torch.testing.assert_close(group.between_layers[..., 1], torch.ones(3, 3))
    torch.testing.assert_close(group.between_heads[:, 0, 1], (angles.cos() + 1) / 2)
    assert group.name == "layers" and group.layers == ["layers.0", "layers.1", "layers.2"]


def test_averages_over_images_for_each_stage():
    model = randomise(RMT(arch="tiny")).eval()
    images = torch.randn(2, 3, 32, 64)
    groups = attention_similarity(model, images)
    alone = [attention_similarity(model, image[None]) for image in images]
    assert [(g.name, len(g.layers)) for g in groups] == [
        (f"stages.{i}", depth) for i, depth in enumerate((2, 2, 8, 2))
    ]
    for both, first, second in zip(groups, *alone, strict=True):
        for name in ("between_layers", "between_heads"):
            assert_same(getattr(both, name), (getattr(first, name) + getattr(second, name)) / 2)


@pytest.mark.parametrize("re_attention", [True, False])
def test_maps_are_those_of_a_run(re_attention):
    """In eval mode; the model's mode stays, and no hook does."""
    model = randomise(DeepViT(arch=SMALL, img_size=64, re_attention=re_attention)).train()
    image = torch.randn(1, 3, 64, 64)
    (group,) = attention_similarity(model, image)
    assert group.layers == [f"blocks.{i}.attn" for i in range(4)]
    assert all(m.training for m in model.modules())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    maps = []
    for block in model.eval().blocks:
        block.attn.register_forward_pre_hook(lambda m, x: maps.append(m.attention_map(*x)[0]))
    model(image)
    (expected,) = similarities_of(torch.stack(maps).detach())
    assert_same(group.between_layers, expected.between_layers)
    assert_same(group.between_heads, expected.between_heads)


def test_model_without_attention():
    with raises_message(ValueError, "ReAttention", where="Conv2d "):
        attention_similarity(nn.Conv2d(3, 3, 1), torch.zeros(1, 3, 4, 4))
