"""The forms that benchmarks compare are the same function."""

import pytest
import torch
from mmseg.models import EncoderDecoder

from benchmarks.class_maps import Case, step
from benchmarks.deepvit import plain_twin
from benchmarks.external_attention import PositionSelfAttention, StoredSelfAttention
from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.segmentors import StripEncoderDecoder
from tests.models import assert_same, randomise

KINDS = (EncoderDecoder, StripEncoderDecoder)
VIEWS = Case(20, (64, 96), (101, 150), views=4)
WINDOWS = Case(19, (96, 160), window=(64, 48))


@pytest.mark.parametrize("case", [VIEWS, WINDOWS], ids=["views", "windows"])
def test_both_sides_give_the_same_labels(case):
    stock, ours = (step(case, kind)() for kind in KINDS)
    assert stock.shape == ours.shape == (case.original or case.size)
    assert (stock == ours).float().mean() > 0.999
    assert len(stock.unique()) == case.classes


def test_both_sides_give_the_same_loss():
    case = Case(20, (64, 96), batch=2)
    stock, ours = (step(case, kind)() for kind in KINDS)
    torch.testing.assert_close(ours, stock, rtol=1e-6, atol=0)


def test_self_attention_is_the_same_with_stored_weights():
    fused, stored = (kind(8).double() for kind in (PositionSelfAttention, StoredSelfAttention))
    stored.load_state_dict(fused.state_dict())
    x = torch.randn(2, 8, 5, 6, dtype=torch.float64)
    assert_same(fused(x), stored(x), rtol=1e-10)


def test_plain_twin_of_a_backbone_is_the_same_function():
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 3, "transform_scale": True}
    model = randomise(DeepViT(arch=arch, img_size=64, rescale_norm=False)).double().eval()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    assert_same(plain_twin(model)(x), model(x), rtol=1e-10)
