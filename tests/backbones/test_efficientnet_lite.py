"""EfficientNetLite: the shared tester, and the maps of dilated variants."""

import pytest
import torch

from mmseg_ext.backbones import EfficientNetLite
from mmseg_ext.backbones.efficientnet_lite import InvertedResidual
from tests.backbones.base import BackboneTester
from tests.messages import raises_message
from tests.models import assert_same, randomise
from tests.parity import Fixture

NARROW = {"widths": (4, 8, 8, 12, 12, 16, 16), "depths": (1, 1, 2, 1, 1, 1, 1)}


class TestEfficientNetLite(BackboneTester):
    config = {"type": "EfficientNetLite", "arch": NARROW}
    channels = (8, 8, 12, 16)
    strides = (4, 8, 16, 32)
    deeper = {"arch": NARROW | {"depths": (1, 1, 2, 1, 2, 1, 1)}}
    traced = {"out_indices": (0,)}  # blocks of both kinds


class TestDilated(BackboneTester):
    config = {"type": "EfficientNetLite", "arch": NARROW, "output_stride": 8}
    channels = (8, 8, 12, 16)
    strides = (4, 8, 8, 8)
    deeper = {}
    traced = {"out_indices": (2,)}
    # As above.
    test_weights_of_another_depth_or_shape = test_compiles_once_for_all_sizes = None


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


def test_the_map_of_the_stem_comes_first():
    plain = randomise(EfficientNetLite(NARROW, out_indices=(1, 2))).eval()
    model = EfficientNetLite(NARROW, out_indices=(1, 2), stem_map=True).eval()
    model.load_state_dict(plain.state_dict())
    images = torch.randn(1, 3, 33, 64)
    with torch.no_grad():
        stem, *others = model(images)
        assert_same([stem, *others], [model.stem(images), *plain(images)])
    assert stem.shape == (1, 4, 17, 32)
    assert (model.feature_info.channels(), model.feature_info.reduction()) == (
        [4, 8, 12],
        [2, 8, 16],
    )
    assert [entry["module"] for entry in model.feature_info] == ["stem", "stages.1", "stages.2"]


@pytest.mark.parametrize(
    ("fixture", "family"),
    [
        ("efficientnet_lite0", "efficientnet_lite"),
        ("timm_efficientnet_lite2", "timm_efficientnet_lite"),
    ],
)
def test_published_names_are_refused(fixture, family):
    with raises_message(ValueError, todo=f"mmseg-ext convert {family} SRC DST"):
        EfficientNetLite().load_state_dict(Fixture(fixture).state_dict, strict=False)


def test_norms_keep_the_epsilon_of_the_weights():
    for norm_cfg, eps in ((None, 1e-3), ({"type": "SyncBN"}, 1e-3), ({"type": "BN", "eps": 1}, 1)):
        model = EfficientNetLite(NARROW, norm_cfg=norm_cfg, norm_eval=True).train()
        norms = [m for m in model.modules() if hasattr(m, "running_var")]
        assert {norm.eps for norm in norms} == {eps} and not any(n.training for n in norms)


@pytest.mark.parametrize("autocast", [True, False])
def test_dilated_blocks_have_right_gradients_in_bfloat16(autocast):
    """With AVX512-BF16 and channels last, torch 2.13.0's convolution does not."""
    block = InvertedResidual((16, 16), 32, 5, 1, 2, {"type": "BN"})
    images = torch.randn(2, 16, 40, 40).contiguous(memory_format=torch.channels_last)
    gradients = []
    for dtype in (torch.float64, torch.float32 if autocast else torch.bfloat16):
        with torch.autocast("cpu", enabled=autocast and dtype == torch.float32):
            output = block.to(dtype)(images.to(dtype))
        block.zero_grad()
        output.double().square().sum().backward()
        gradients.append(block.depthwise.conv.weight.grad.flatten().double())
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99
