"""EfficientNetLite: the shared tester, and the maps of dilated variants."""

import pytest
import torch

from mmseg_ext.backbones import EfficientNetLite
from tests.backbones.base import BackboneTester
from tests.models import assert_same, randomise

NARROW = {"widths": (4, 8, 8, 12, 12, 16, 16), "depths": (1, 1, 2, 1, 1, 1, 1)}


class TestEfficientNetLite(BackboneTester):
    config = {"type": "EfficientNetLite", "arch": NARROW}
    channels = (8, 8, 12, 16)
    strides = (4, 8, 16, 32)
    deeper = {"arch": NARROW | {"depths": (1, 1, 2, 1, 2, 1, 1)}}
    traced = {"out_indices": (0, 1)}


class TestDilated(BackboneTester):
    config = {"type": "EfficientNetLite", "arch": NARROW, "output_stride": 8}
    channels = (8, 8, 12, 16)
    strides = (4, 8, 8, 8)
    deeper = {}
    traced = {"out_indices": (2,)}
    test_weights_of_another_depth_or_shape = None  # as above


@pytest.mark.parametrize(("stride", "steps"), [(16, (1, 1, 1, 2)), (8, (1, 1, 2, 4))])
def test_dilation_only_adds_positions(stride, steps):
    """A map of stride 32 has the values of every second or fourth position of the dense one."""
    sparse = randomise(EfficientNetLite(NARROW)).eval()
    dense = EfficientNetLite(NARROW, output_stride=stride).eval()
    dense.load_state_dict(sparse.state_dict())
    images = torch.randn(1, 3, 64, 128)
    with torch.no_grad():
        maps = [
            m[..., step - 1 :: step, step - 1 :: step]
            for m, step in zip(dense(images), steps, strict=True)
        ]
        assert_same(maps, sparse(images))
    with pytest.raises(ValueError, match="output_stride=4: "):
        EfficientNetLite(output_stride=4)
