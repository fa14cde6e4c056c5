"""Similarity of attention maps: constructed maps with known cosines, and each kind of layer."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmseg_ext.backbones import EAMLP, RMT, DeepViT
from mmseg_ext.commands.attention_similarity import main
from mmseg_ext.inspection import attention_similarity
from mmseg_ext.inspection.similarity import DecomposedMaps, FullMaps, attention_maps, column_cosine
from mmseg_ext.layers.manhattan_attention import ManhattanAttention
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
    s = column_cosine(FullMaps(first[None]), FullMaps(other[None])).mean().item()
    assert s < 0.99
    expected = [[s, (1 + s) / 2, 1, 1], [s, (2 + s) / 3, (2 + s) / 3, 1]]
    for k, values in zip((1, 2), expected, strict=True):
        assert group.with_neighbours(k).tolist() == pytest.approx(values)
    assert group.similar_layers().tolist() == [0, 0, 1, 2]
    with pytest.raises(ValueError, match=r"k must lie between 1 and 3, not 4"):
        group.with_neighbours(4)


def test_averages_over_images():
    """Two images together are the mean of each alone, at sizes of their own."""
    model = randomise(DeepViT(arch=SMALL, img_size=64)).eval()
    images = [torch.randn(1, 3, 64, 64), torch.randn(1, 3, 32, 80)]
    (both,) = attention_similarity(model, images)
    alone = [attention_similarity(model, image)[0] for image in images]
    for name in ("between_layers", "share_similar", "between_heads"):
        assert_same(getattr(both, name), sum(getattr(g, name) for g in alone) / 2)


def test_decomposed_maps_are_their_product():
    first, second = (
        DecomposedMaps(softmax_maps(2, 3, 5, 4, 4), softmax_maps(2, 3, 4, 5, 5)) for _ in range(2)
    )
    dense = [FullMaps(m.composed()) for m in (first, second)]
    assert_same(first.inner(second), dense[0].inner(dense[1]), rtol=1e-12)
    assert_same(first.head(1).inner(second), dense[0].head(1).inner(dense[1]), rtol=1e-12)
    assert dense[0].maps.sum(-1).allclose(torch.ones(2, 3, 20, dtype=torch.float64))


@pytest.mark.parametrize("decomposed", [True, False])
@pytest.mark.parametrize("decay", ["logit", "product", None])
def test_manhattan_maps_weigh_the_values(decomposed, decay):
    layer = ManhattanAttention(24, 3, decomposed=decomposed, decay=decay, lce=False).double()
    x = torch.randn(2, 4, 5, 24, dtype=torch.float64)
    maps = attention_maps(layer, x)
    dense = maps.composed() if decomposed else maps.maps
    v = layer.v_proj(x).flatten(1, 2).unflatten(-1, (3, -1)).transpose(1, 2)  # (B, n, L, d)
    y = (dense @ v).transpose(1, 2).flatten(2).view(2, 4, 5, 24)
    assert_same(layer(x), layer.out_proj(y), rtol=1e-6)


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


def test_rmt_has_a_group_for_each_stage():
    groups = attention_similarity(RMT(arch="tiny"), torch.randn(1, 3, 64, 96))
    assert [len(g.layers) for g in groups] == [2, 2, 8, 2]
    for group in groups:
        assert group.between_layers.min() > 0 and group.between_layers.max() <= 1 + 1e-5


def test_eamlp_compares_heads_and_refuses_layers():
    arch = {"embed_dims": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    (group,) = attention_similarity(EAMLP(arch=arch, img_size=32), torch.randn(1, 3, 32, 48))
    assert group.between_heads.shape == (2, 8, 8)
    torch.testing.assert_close(group.between_heads.diagonal(0, 1, 2), torch.ones(2, 8))
    for ask in (lambda: group.between_layers, lambda: group.share_similar, group.similar_layers):
        with pytest.raises(ValueError, match=r"'blocks'.*memory slots"):
            ask()


def test_eamlp_maps_weigh_the_values():
    layer = (
        EAMLP(arch={"embed_dims": 32, "depth": 1, "num_heads": 2, "mlp_ratio": 2}).blocks[0].attn
    )
    layer = randomise(layer).double().eval()
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    maps = attention_maps(layer, x).maps  # (B, G, N, S)
    y = layer.proj(layer.linear_1(maps).transpose(1, 2).flatten(2))
    assert_same(layer(x), y, rtol=1e-6)


def test_nothing_stays_on_the_model():
    model = DeepViT(arch=SMALL, img_size=64)
    attention_similarity(model, torch.randn(1, 3, 64, 64))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_refuses_what_it_cannot_measure():
    with pytest.raises(ValueError, match=r"Conv2d has none of the layers"):
        attention_similarity(nn.Conv2d(3, 3, 1), torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"images"):
        attention_similarity(DeepViT(arch=SMALL), [])
    with pytest.raises(ValueError, match=r"not Linear"):
        attention_maps(nn.Linear(2, 2), torch.zeros(1, 2))


CONFIG = """
custom_imports = dict(imports=["mmseg_ext"], allow_failed_imports=False)
default_scope = "mmseg"
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor", mean=[127.5] * 3, std=[127.5] * 3, bgr_to_rgb=True),
    backbone={backbone},
    decode_head=dict(type="FCNHead", in_channels=24, channels=8, num_classes=2, num_convs=1),
    test_cfg=dict(mode="whole"),
)
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(64, 64), keep_ratio=False),
    dict(type="LoadAnnotations"),
    dict(type="PackSegInputs"),
]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(3):
        pixels = np.random.RandomState(i).randint(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
    return tmp_path


def run(folder, backbone: dict, *flags: str) -> int:
    config = folder / "config.py"
    config.write_text(CONFIG.replace("{backbone}", repr(backbone)))
    return main(
        [str(config), "--images", str(folder / "images"), "--out", str(folder / "out"), *flags]
    )


def test_tool_draws_and_writes_what_it_measured(folder):
    backbone = {"type": "DeepViT", "arch": SMALL, "img_size": 64}
    model = randomise(DeepViT(arch=SMALL, img_size=64))
    checkpoint = folder / "weights.pth"
    torch.save({f"backbone.{k}": v for k, v in model.state_dict().items()}, checkpoint)
    config = folder / "config.py"
    config.write_text(CONFIG.replace("{backbone}", repr(backbone)))
    arguments = ["--images", str(folder / "images"), "--out", str(folder / "out"), "--count", "2"]
    assert main([str(config), str(checkpoint), *arguments]) == 0
    assert Image.open(folder / "out" / "attention_similarity.png").size[0] > 400
    report = json.loads((folder / "out" / "attention_similarity.json").read_text())
    assert report["images"] == 2
    pictures = []
    for i in range(2):
        pixels = np.array(Image.open(folder / "images" / f"{i}.png"))
        pictures.append(torch.from_numpy(pixels).permute(2, 0, 1).float())
    images = (torch.stack(pictures) - 127.5) / 127.5
    (expected,) = attention_similarity(model, images)
    (group,) = report["groups"]
    measured = torch.tensor(group["between_layers"])
    torch.testing.assert_close(measured, expected.between_layers.mean(-1))
    assert group["similar_layers"] == expected.similar_layers().tolist()


def test_tool_on_external_attention(folder):
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    assert run(folder, {"type": "EAMLP", "arch": arch, "img_size": 64}) == 0
    report = json.loads((folder / "out" / "attention_similarity.json").read_text())
    (group,) = report["groups"]
    assert group["between_layers"] is None and "memory slots" in group["why_not"]
    assert len(group["within_layers"]) == 2


def test_tool_refuses_in_one_line(folder, capsys):
    assert run(folder, {"type": "ResNetV1c", "depth": 18}) == 1
    assert "ResNetV1c has none of the layers" in capsys.readouterr().err
    (folder / "empty").mkdir()
    flags = ("--images", str(folder / "empty"))
    assert run(folder, {"type": "DeepViT", "arch": SMALL}, *flags) == 1
    assert "no images" in capsys.readouterr().err
    backbone = {"type": "DeepViT", "arch": SMALL, "img_size": 64}
    assert run(folder, backbone, "--device", "cuda:99") == 1
    assert "device 'cuda:99' cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no picture"])
def test_tool_names_an_image_that_cannot_be_read(folder, content, capsys):
    (folder / "images" / "1.png").write_bytes(content)
    assert run(folder, {"type": "DeepViT", "arch": SMALL, "img_size": 64}) == 1
    error = capsys.readouterr().err
    assert "1.png: cannot be read" in error and error.count("\n") == 1


@pytest.mark.parametrize("part", ["model", "test_pipeline", "test_dataloader"])
def test_tool_names_what_the_config_lacks(folder, part, capsys):
    text = CONFIG.replace("{backbone}", repr({"type": "DeepViT", "arch": SMALL, "img_size": 64}))
    config = folder / "config.py"
    config.write_text(text.replace(f"{part} =", "other ="))
    images = [] if part == "test_dataloader" else ["--images", str(folder / "images")]
    assert main([str(config), "--out", str(folder / "out"), *images]) == 1
    assert f"config.py: the config has no {part}" in capsys.readouterr().err


def test_tool_says_which_weights_it_measured(folder):
    backbone = {"type": "DeepViT", "arch": SMALL, "img_size": 64}
    torch.save(randomise(DeepViT(arch=SMALL, img_size=64)).state_dict(), folder / "weights.pth")
    pretrained = {"type": "Pretrained", "checkpoint": str(folder / "weights.pth")}
    normal = {"type": "TruncNormal", "layer": "Linear", "std": 0.02}
    results = []
    for init_cfg in (None, normal, pretrained, [normal, pretrained]):
        assert run(folder, {**backbone, "init_cfg": init_cfg}, "--count", "1") == 0
        report = json.loads((folder / "out" / "attention_similarity.json").read_text())
        results.append((report["weights"], report["groups"]))
    random, loaded = "random initialisation", str(folder / "weights.pth")
    assert [weights for weights, _ in results] == [random, random, loaded, loaded]
    assert results[2][1] == results[3][1] != results[0][1]
