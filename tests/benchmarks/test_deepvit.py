"""The plain formulation that re-attention is measured against computes the same."""

import pytest
import torch

from benchmarks import deepvit as re_attention_speed
from benchmarks.deepvit import inference_row, plain_twin
from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.layers.re_attention import ReAttention
from tests.models import assert_same, randomise

SMALL = {"embed_dims": 24, "depth": 2, "num_heads": 3, "transform_scale": True}


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (lambda: ReAttention(24, 3), torch.randn(2, 10, 24)),
        (lambda: DeepViT(arch=SMALL, img_size=64, rescale_norm=False), torch.randn(1, 3, 64, 64)),
    ],
)
def test_plain_twin_is_the_same_function(model, x):
    model = randomise(model()).double().eval()
    with torch.no_grad():
        assert_same(plain_twin(model)(x.double()), model(x.double()), rtol=1e-10)


def test_row_takes_medians_and_paired_ratios(monkeypatch):
    seconds = {"plain": [2.0, 4.0, 9.0], "blocks": [1.0, 1.0, 3.0]}
    monkeypatch.setattr(re_attention_speed, "paired_times", lambda steps, rounds: seconds)
    row = inference_row("layer", ReAttention(24, 3), torch.randn(1, 10, 24), rounds=3)
    assert (row["plain_ms"], row["blocks_ms"], row["ratio"]) == (4000.0, 1000.0, 3.0)
