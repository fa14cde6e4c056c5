"""Published DeepViT state dicts, kept whole or without the classifier."""

import pytest
import torch

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.checkpoint import convert_official
from tests.parity import Fixture

TINY = {"embed_dims": 24, "depth": 3, "num_heads": 3}


@pytest.fixture(scope="module")
def published():
    return Fixture("deepvit_re_attn_16b").state_dict


def test_backbone_drops_the_classifier(published):
    weights = convert_official("deepvit", published)
    assert set(published) - set(weights) == {"head.weight", "head.bias"}
    model = DeepViT(arch="16b")
    model.load_state_dict(weights, strict=True)
    assert torch.equal(
        model.blocks[7].attn.reatten_matrix.weight, published["blocks.7.attn.reatten_matrix.weight"]
    )


@pytest.mark.parametrize("arch", ["24b", "32b", "s", "l"])
@pytest.mark.parametrize("re_attention", [True, False])
def test_infers_each_architecture(arch, re_attention):
    with torch.device("meta"):
        model = DeepViT(arch=arch, num_classes=10, re_attention=re_attention)
        backbone = DeepViT(arch=arch, re_attention=re_attention)
    weights = convert_official("deepvit", model.state_dict(), classifier=True)
    assert weights.keys() == model.state_dict().keys()
    weights = convert_official("deepvit", model.state_dict())
    assert weights.keys() == backbone.state_dict().keys()


def test_infers_other_sizes_and_widths():
    arch = {**TINY, "mlp_ratio": 2.5, "re_attention_blocks": 1}
    model = DeepViT(arch=arch, img_size=96, num_classes=4)
    weights = convert_official("deepvit", model.state_dict(), classifier=True)
    model.load_state_dict(weights, strict=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("blocks.1.attn.proj.bias"), r"missing keys: blocks\.1\.attn\.proj\.bias"),
        (lambda s: s.pop("cls_token"), r"missing keys: cls_token"),
        (lambda s: s.update(distillation=torch.zeros(1)), r"unmapped keys.*distillation"),
        (lambda s: s.update({"blocks.0.ls1": torch.zeros(1)}), r"unmapped keys.*blocks\.0\.ls1"),
        (lambda s: s.update(pos_embed=torch.zeros(1, 12, 24)), r"11 positions"),
        (lambda s: s.update({"norm.bias": torch.zeros(3)}), r"norm\.bias \(3,\) instead of"),
    ],
)
def test_refuses_what_does_not_fit(change, message):
    weights = DeepViT(arch=TINY, num_classes=2).state_dict()
    change(weights)
    with pytest.raises(ValueError, match=message):
        convert_official("deepvit", weights, classifier=True)
