"""EAMLP: the shared tests of backbones, the published classifier, parameters and positions."""

import torch

from mmseg_ext.backbones import EAMLP
from tests.backbones.base import BackboneTester
from tests.models import assert_same, randomise

SMALL = {"embed_dims": 32, "depth": 3, "num_heads": 2, "mlp_ratio": 2}


class TestEAMLP(BackboneTester):
    config = {"type": "EAMLP", "arch": {**SMALL, "depth": 2}, "img_size": 64}
    config["out_indices"] = (0, 1)
    channels = (32, 32)
    strides = (16, 16)
    deeper = {"arch": SMALL, "out_indices": (0, 1, 2)}
    traced = {"out_indices": (0,)}
    zero_gradient = (r"blocks\.\d+\.attn\.(trans_dims|linear_0)\.bias",)


def test_token_modules_drop_a_tenth():
    """As published, whatever the other rates: of the attention and of the projection."""
    modules = EAMLP(arch=SMALL, img_size=32).tokens_to_token.named_modules()
    rates = {n: m.p for n, m in modules if isinstance(m, torch.nn.Dropout) and ".attn." in n}
    names = [f"attention{i}.attn.{n}" for i in (1, 2) for n in ("attn_drop", "proj_drop")]
    assert rates == dict.fromkeys(names, 0.1)


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
