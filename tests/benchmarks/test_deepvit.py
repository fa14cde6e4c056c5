"""Statistics of attention maps at other image sizes, on a model trained at one size."""

import pytest
import torch

from benchmarks.deepvit import CELLS, compare_statistics, plain_twin, scenes
from mmseg_ext.backbones.deepvit import DeepViT
from tests.models import assert_same, randomise


def test_plain_twin_of_a_backbone_is_the_same_function():
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 3, "transform_scale": True}
    model = randomise(DeepViT(arch=arch, img_size=64, rescale_norm=False)).double().eval()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        assert_same(plain_twin(model)(x), model(x), rtol=1e-10)


def test_scenes_ask_for_the_mean_and_keep_their_cells():
    images, labels = scenes(3, 2, torch.Generator().manual_seed(0))
    cells = images.mean(1).unflatten(1, (CELLS, 32)).unflatten(3, (CELLS, 32)).mean((2, 4))
    above = cells > cells.mean((1, 2), keepdim=True)
    expected = above.long().repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert (expected == labels).float().mean() > 0.95


def test_rescaled_statistics_hold_at_other_sizes():
    """Learned at 17 tokens, asked at 17, 65 and 257."""
    rows = compare_statistics(iterations=200)
    assert [row["tokens"] for row in rows] == [17, 65, 257]
    home = rows[0]
    assert home["rescaled"] > 0.75
    assert home["as learned"] == pytest.approx(home["rescaled"], abs=1e-3)
    for row in rows[1:]:
        assert row["rescaled"] > home["rescaled"] - 0.05
        assert row["as learned"] < home["rescaled"] - 0.3
        assert row["estimated anew"] > row["as learned"]
