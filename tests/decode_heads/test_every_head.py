"""The base tester on each registered head without a file of its own, and parameters of all."""

import pytest
import torch
from mmseg.registry import MODELS

from tests.decode_heads.base import HeadTester
from tests.models import untested

for _name in untested("decode_heads", HeadTester):
    _tester = type(f"Test{_name}", (HeadTester,), {"config": {"type": _name, "channels": 16}})
    globals()[_tester.__name__] = _tester
    del _tester


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (dict(type="EAHead", num_classes=21), 11_215_125),
        (dict(type="JSegEAHead", num_classes=19), 1_574_656 + 513 * 19),
        (dict(type="MaSAHead", num_classes=19), 23_906_835),
        # DAHead's, with the 328,321 of its position attention exchanged for 591,360
        (dict(type="DANetEAHead", channels=512, num_classes=150), 24_156_228 - 328_321 + 591_360),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_parameters_at_full_size(config, parameters):
    with torch.device("meta"):
        head = MODELS.build(dict(in_channels=2048, **config))
    assert sum(p.numel() for p in head.parameters()) == parameters
