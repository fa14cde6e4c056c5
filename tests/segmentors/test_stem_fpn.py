"""StemFPN next to mmsegmentation's FPN."""

import torch
from mmseg.registry import MODELS

from tests.models import assert_same


def test_passes_the_first_map_on():
    pyramid = dict(in_channels=[4, 5], out_channels=6, num_outs=2, norm_cfg=dict(type="BN"))
    neck, fpn = (MODELS.build(dict(type=name, **pyramid)) for name in ("StemFPN", "FPN"))
    fpn.load_state_dict(neck.state_dict())
    stem, *others = (torch.randn(2, 3 + i, 17 >> i, 32 >> i) for i in range(3))
    first, *rest = neck.eval()([stem, *others])
    assert first is stem
    assert_same(rest, fpn.eval()(others))
