"""EAMLP: the shared tests of backbones, the published classifier, parameters and positions."""

import pytest
import torch

from mmseg_ext import fuse_model
from mmseg_ext.backbones.eamlp import EAMLP, sinusoidal_positions
from mmseg_ext.backbones.token_backbone import positions_at
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.doctor.fixtures import cases
from tests.backbones.base import BackboneTester
from tests.models import assert_same, randomise

SMALL = {"embed_dims": 32, "depth": 3, "num_heads": 2, "mlp_ratio": 2}


class TestEAMLP(BackboneTester):
    config = {"type": "EAMLP", "arch": SMALL, "img_size": 64, "out_indices": (0, 1, 2)}
    channels = (32, 32, 32)
    strides = (16, 16, 16)
    deeper = {"arch": {**SMALL, "depth": 4}, "out_indices": (0, 1, 2, 3)}
    traced = {"out_indices": (0,)}
    zero_gradient = (r"blocks\.\d+\.attn\.(trans_dims|linear_0)\.bias",)


@torch.no_grad()
def test_fused_classifier():
    (case,) = cases("eamlp_14")
    assert case.error(fuse_model(case.module.double())(case.x.double())) <= 1e-6


# Of the published classifiers with 1000 classes; the paper has 30 M and 55 M for 14 and 19.
PARAMETERS = {"7": 6_096_206, "10": 8_489_678, "12": 10_085_326}
PARAMETERS |= {"14": 29_801_422, "19": 54_470_798, "24": 89_355_726}


@pytest.mark.parametrize("arch", PARAMETERS)
def test_parameters(arch):
    with torch.device("meta"):
        model = EAMLP(arch=arch, num_classes=1000)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[arch]


@pytest.mark.parametrize(("arch", "published"), [("14", 6.45e9), ("19", 11.60e9)])
def test_multiply_adds(arch, published):
    """At 224x224. Composed maps need no more than the published order and save its memories."""
    with torch.device("meta"):
        model = EAMLP(arch=arch, num_classes=1000).eval()
        images = torch.empty(1, 3, 224, 224)
        # 197 tokens are fewer than the channels: maps are applied in the published order.
        assert count_multiply_adds(model, images).all == pytest.approx(published, rel=2e-3)
    settings = EAMLP.arch_settings[arch]
    memories = 2 * settings["depth"] * 197 * 4 * settings["embed_dims"] * 64
    fused = count_multiply_adds(fuse_model(model), images).all
    assert fused == count_multiply_adds(model, images).all - memories


def test_token_modules_drop_a_tenth():
    """As published, whatever the other rates: of the attention and of the projection, once each."""
    model = EAMLP(arch=SMALL, img_size=32).train()
    called = []
    for name, module in model.tokens_to_token.named_modules():
        if isinstance(module, torch.nn.Dropout) and "attn" in name:
            assert module.p == 0.1
            module.register_forward_hook(
                lambda module, x, y, name=name: called.append((name, bool((y != x[0]).any())))
            )
    model(torch.randn(1, 3, 32, 32))
    names = [f"attention{i}.attn.{n}" for i in (1, 2) for n in ("attn_drop", "proj_drop")]
    assert called == [(name, True) for name in names]


def test_positions_at_other_sizes():
    """The table's own grid gets the table; others a bicubic interpolation, the class token kept."""
    model = EAMLP(arch=SMALL, img_size=64)
    assert torch.equal(
        positions_at(model.pos_embed, model.grid, (4, 4)), sinusoidal_positions(17, 32)
    )
    wide = positions_at(model.pos_embed, model.grid, (4, 8))
    assert torch.equal(wide[:, 0], model.pos_embed[:, 0])
    grid = wide[:, 1:].unflatten(1, (4, 8))
    table = model.pos_embed[:, 1:].unflatten(1, (4, 4))
    # Twice as wide, corners not aligned: columns come in pairs that straddle those of the table.
    # In between, bicubic weights (a = -0.75) at offsets of a quarter.
    weights = torch.tensor([-0.10546875, 0.87890625, 0.26171875, -0.03515625])
    expected = sum(w * table[:, :, i] for i, w in zip(range(0, 4), weights, strict=True))
    assert_same(grid[:, :, 3], expected)


def test_only_the_last_map_is_normalized():
    model = randomise(EAMLP(arch=SMALL, img_size=64, out_indices=(1, 2))).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        model.norm.weight.fill_(1)
        model.norm.bias.zero_()
        inner, last = model(x)
        assert last.mean(1).abs().max() < 1e-5 < inner.mean(1).abs().max()
        model.norm.weight.fill_(2)
        model.norm.bias.fill_(3)
        assert_same(model(x), (inner, 2 * last + 3))


def test_token_memories_start_equal_and_apart():
    model = EAMLP(arch=SMALL)
    attn = model.tokens_to_token.attention1.attn
    assert torch.equal(attn.linear_0.weight, attn.linear_1.weight.t())
    with torch.no_grad():
        attn.linear_1.weight.zero_()
    assert attn.linear_0.weight.abs().max() > 0
