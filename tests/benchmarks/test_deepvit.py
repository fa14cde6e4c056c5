"""The plain form that re-attention is measured against."""

import torch

from benchmarks.deepvit import plain_twin
from mmseg_ext.backbones.deepvit import DeepViT
from tests.models import assert_same, randomise


def test_plain_twin_of_a_backbone_is_the_same_function():
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 3, "transform_scale": True}
    model = randomise(DeepViT(arch=arch, img_size=64, rescale_norm=False)).double().eval()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        assert_same(plain_twin(model)(x), model(x), rtol=1e-10)
