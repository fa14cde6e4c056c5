"""MaSAHead: what every head must pass, and its cost at output stride 8."""

import torch
from mmseg.registry import MODELS

from mmseg_ext.cost.model_cost import count_multiply_adds  # only a command is public
from tests.decode_heads.base import HeadTester


class TestMaSAHead(HeadTester):
    config = {"type": "MaSAHead", "channels": 24, "num_heads": 3}
    size = (8, 12)


class TestMaSAHeadOverWholeMaps(HeadTester):
    config = {**TestMaSAHead.config, "decomposed": False}
    size = (8, 12)
    test_export = test_compiles_once_for_all_sizes = None  # the layer's tests have this form


def test_cost_on_a_crop_of_769():
    """97x97 positions: along the axes attention's products are 1/97 of those over the map."""
    costs = {}
    for decomposed in (True, False):
        with torch.device("meta"):
            config = {"type": "MaSAHead", "in_channels": 2048, "num_classes": 19}
            head = MODELS.build({**config, "decomposed": decomposed}).eval()
            cost = count_multiply_adds(head, [torch.empty(1, 2048, 97, 97)])
        costs[decomposed] = cost.all - cost.modules
    positions = 97 * 97
    assert costs[False] == 2 * positions * positions * 512
    assert costs[True] == 2 * 2 * positions * 97 * 512
