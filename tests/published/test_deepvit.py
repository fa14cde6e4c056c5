"""Published DeepViT state dicts, kept whole or without the classifier."""

import pytest
import torch

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.checkpoint import convert_official
from tests.parity import Fixture


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


def test_positions_that_form_no_square_are_refused(published):
    with pytest.raises(ValueError, match="11 patch positions"):
        convert_official("deepvit", {**published, "pos_embed": torch.zeros(1, 12, 24)})
