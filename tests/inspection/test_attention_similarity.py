"""Similarity of attention maps: constructed maps with known cosines, and each kind of layer."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmseg_ext.backbones import EAMLP, RMT, DeepViT
from mmseg_ext.inspection import attention_similarity, draw_similarity
from mmseg_ext.layers.self_attention import SelfAttention
from tests.models import assert_same, randomise

SMALL = {"embed_dims": 24, "depth": 4, "num_heads": 3}


def softmax_maps(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).softmax(-1)


class Given(SelfAttention):
    """Self-attention with given maps (heads, N, N) in the place of computed ones."""

    def __init__(self, maps: torch.Tensor):
        super().__init__(maps.shape[0], maps.shape[0])
        self.register_buffer("maps", maps)

    def attention_map(self, x):
        return self.maps.expand(len(x), -1, -1, -1)


class Stack(nn.Module):
    """A model whose layers have given maps (layers, heads, N, N)."""

    def __init__(self, maps: torch.Tensor):
        super().__init__()
        self.layers = nn.ModuleList(Given(m) for m in maps)

    def forward(self, images):
        x = images.new_zeros(len(images), self.layers[0].maps.shape[-1], self.layers[0].num_heads)
        for layer in self.layers:
            x = layer(x)
        return x


def turned(angle: float) -> torch.Tensor:
    """A map of two tokens whose first column lies at `angle` to the first axis."""
    column = torch.tensor([math.cos(angle), math.sin(angle)])
    return torch.stack([column, torch.tensor([1.0, 0.0])], dim=1)


def test_known_similarities():
    """Columns of head 0 at 0, 60 and 90 degrees in the three layers; head 1 the same in all."""
    angles = torch.tensor([0.0, 60.0, 90.0]).deg2rad()
    maps = torch.stack([torch.stack([turned(a), turned(0.0)]) for a in angles])
    (group,) = attention_similarity(Stack(maps), torch.zeros(2, 3, 4, 4), threshold=0.7)
    # The second token's columns are equal, so a mean over tokens is (cosine + 1) / 2.
    cosine = (angles[:, None] - angles).cos()
    torch.testing.assert_close(group.between_layers[..., 0], (cosine + 1) / 2)
    torch.testing.assert_close(group.between_layers[..., 1], torch.ones(3, 3))
    # Of two heads and two tokens one misses 0.7, where the layers are more than 45 degrees apart.
    share = torch.tensor([[1, 0.75, 0.75], [0.75, 1, 1], [0.75, 1, 1]])
    torch.testing.assert_close(group.share_similar, share)
    heads = torch.stack([(angles.cos() + 1) / 2] * 2, -1)
    torch.testing.assert_close(group.between_heads[:, 0, 1], heads[:, 0])
    torch.testing.assert_close(group.within_layers(), heads[:, 0])
    assert group.name == "layers" and group.layers == ["layers.0", "layers.1", "layers.2"]


def test_curves_of_the_figures():
    """Four layers, the last three of which have the same maps."""
    first, other = softmax_maps(2, 5, 5), softmax_maps(2, 5, 5)
    maps = torch.stack([first, other, other, other])
    (group,) = attention_similarity(Stack(maps), torch.zeros(1, 3, 4, 4), threshold=0.999)
    s = nn.functional.cosine_similarity(first, other, dim=-2).mean().item()
    assert s < 0.99
    expected = [[s, (1 + s) / 2, 1, 1], [s, (2 + s) / 3, (2 + s) / 3, 1]]
    for k, values in zip((1, 2), expected, strict=True):
        assert group.with_neighbours(k).tolist() == pytest.approx(values)
    assert group.similar_layers().tolist() == [0, 0, 1, 2]


def test_averages_over_images():
    """Two images together are the mean of each alone; the layers of a stage form a group."""
    model = randomise(RMT(arch="tiny")).eval()
    images = [torch.randn(1, 3, 64, 64), torch.randn(1, 3, 32, 96)]
    groups = attention_similarity(model, images)
    alone = [attention_similarity(model, image) for image in images]
    assert [len(g.layers) for g in groups] == [2, 2, 8, 2]
    for both, first, second in zip(groups, *alone, strict=True):
        for name in ("between_layers", "share_similar", "between_heads"):
            assert_same(getattr(both, name), (getattr(first, name) + getattr(second, name)) / 2)


@pytest.mark.parametrize("re_attention", [True, False])
def test_deepvit(re_attention):
    """Against normalised columns of every block's map, all layers and heads in one product."""
    model = randomise(DeepViT(arch=SMALL, img_size=64, re_attention=re_attention)).double()
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    model.train()
    (group,) = attention_similarity(model, images)
    assert model.training and all(m.training for m in model.modules())
    model.eval()
    columns = []
    x = model.patch_embed(images).flatten(2).transpose(1, 2)
    x = torch.cat([model.cls_token, x], 1) + model.pos_embed
    for block in model.blocks:
        columns.append(nn.functional.normalize(block.attn.attention_map(block.norm1(x))[0], dim=-2))
        x = block(x)
    stacked = torch.stack(columns)  # (layers, heads, N, N)
    expected = torch.einsum("phit,qhit->pqht", stacked, stacked).mean(-1)
    assert_same(group.between_layers, expected.detach(), rtol=1e-10)
    heads = torch.einsum("pgit,phit->pght", stacked, stacked).mean(-1)
    assert_same(group.between_heads, heads.detach(), rtol=1e-10)
    assert group.layers == [f"blocks.{i}.attn" for i in range(4)]
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@pytest.fixture
def eamlp_groups():
    arch = {"embed_dims": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    return attention_similarity(EAMLP(arch=arch, img_size=32), torch.randn(1, 3, 32, 48))


def test_eamlp_compares_heads_and_refuses_layers(eamlp_groups):
    (group,) = eamlp_groups
    assert group.between_heads.shape == (2, 8, 8)
    torch.testing.assert_close(group.between_heads.diagonal(0, 1, 2), torch.ones(2, 8))
    assert group.between_layers is None and group.share_similar is None
    with pytest.raises(ValueError, match=r"'blocks'.*memory slots"):
        group.similar_layers()


def test_refuses_what_it_cannot_measure():
    with pytest.raises(ValueError, match=r"Conv2d has none of the layers"):
        attention_similarity(nn.Conv2d(3, 3, 1), torch.zeros(1, 3, 4, 4))


def test_figures_of_both_kinds(eamlp_groups, tmp_path):
    model = DeepViT(arch=SMALL, img_size=64)
    groups = eamlp_groups + attention_similarity(model, torch.randn(1, 3, 64, 64))
    draw_similarity(groups, tmp_path / "a.png", "two models")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000 and np.asarray(picture.convert("L")).std() > 10
