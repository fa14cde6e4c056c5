"""EANet's published model in the segmentor that the VOC config builds."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS

from mmseg_ext.checkpoint import convert_official
from tests.configs import CONFIGS
from tests.parity import Fixture, assert_parity


@pytest.fixture(scope="module")
def fixture():
    return Fixture("eanet_r101_voc")


@pytest.fixture(scope="module")
def segmentor(fixture):
    """Built from the config itself, with every weight from the published names, strictly."""
    config = Config.fromfile(CONFIGS / "ea_r101_voc_45k.py").model
    model = revert_sync_batchnorm(MODELS.build(config))
    model.load_state_dict(convert_official("eanet", fixture.state_dict), strict=True)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parity(fixture, segmentor, dtype):
    """Logits at input size, aligned corners: every 4th row and column."""
    image = fixture.inputs["img"].to(dtype)
    model = segmentor.to(dtype)
    with torch.no_grad():
        logits = model.decode_head.predict(
            model.extract_feat(image), [{"img_shape": image.shape[2:]}], model.test_cfg
        )
    assert_parity(logits[:, :, ::4, ::4], fixture.outputs["logits"])


def test_resnet_deep_stem_is_the_same_backbone(segmentor):
    """And without most blocks of its third stage a ResNet-50."""
    backbone = segmentor.backbone.state_dict()
    published = {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    for key, value in backbone.items():
        published[key.replace("stem.7.", "bn1.").replace("stem.", "conv1.")] = value
    converted = convert_official("resnet_deep_stem", published)
    assert converted.keys() == backbone.keys()
    assert all(torch.equal(converted[key], backbone[key]) for key in converted)

    later = tuple(f"layer3.{i}." for i in range(6, 23))
    shallow = {k: v for k, v in published.items() if not k.startswith(later)}
    config = {"type": "ResNetV1c", "depth": 50, "stem_channels": 128, "norm_cfg": {"type": "BN"}}
    converted = convert_official("resnet_deep_stem", shallow)
    MODELS.build(config).load_state_dict(converted, strict=True)


def test_counters(fixture):
    """`num_batches_tracked` is kept, and zero if it is missing, as before PyTorch 0.4.1."""
    counters = {k for k in fixture.state_dict if k.endswith("num_batches_tracked")}
    for value, changes in ((0, {}), (7, dict.fromkeys(counters, torch.tensor(7)))):
        state = {k: v for k, v in fixture.state_dict.items() if k not in counters} | changes
        converted = convert_official("eanet", state)
        found = [v for k, v in converted.items() if k.endswith("num_batches_tracked")]
        assert len(found) == len(counters) and all(v == value for v in found)
