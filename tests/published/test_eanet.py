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


def resnet_file(fixture) -> dict[str, torch.Tensor]:
    """The ImageNet file's names around the fixture's backbone."""
    names = {"extractor.0.": "conv1.", "extractor.1.": "bn1."}
    names |= {f"extractor.{i + 3}.": f"layer{i}." for i in range(1, 5)}
    renamed = {
        new + key.removeprefix(old): value
        for key, value in fixture.state_dict.items()
        for old, new in names.items()
        if key.startswith(old)
    }
    return renamed | {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}


def test_resnet_deep_stem_is_the_same_backbone(fixture, segmentor):
    converted = convert_official("resnet_deep_stem", resnet_file(fixture))
    expected = convert_official("eanet", fixture.state_dict)
    backbone = {k.removeprefix("backbone."): v for k, v in expected.items() if "backbone" in k}
    assert converted.keys() == backbone.keys() == segmentor.backbone.state_dict().keys()
    assert all(torch.equal(converted[key], backbone[key]) for key in converted)


def test_counters(fixture):
    """`num_batches_tracked` is kept, and zero if it is missing, as before PyTorch 0.4.1."""
    counters = {k for k in fixture.state_dict if k.endswith("num_batches_tracked")}
    for value, changes in ((0, {}), (7, dict.fromkeys(counters, torch.tensor(7)))):
        state = {k: v for k, v in fixture.state_dict.items() if k not in counters} | changes
        converted = convert_official("eanet", state)
        found = [v for k, v in converted.items() if k.endswith("num_batches_tracked")]
        assert len(found) == len(counters) and all(v == value for v in found)


def test_the_keys_tell_the_depth(fixture):
    later = tuple(f"layer3.{i}." for i in range(6, 23))
    shallow = {k: v for k, v in resnet_file(fixture).items() if not k.startswith(later)}
    config = {"type": "ResNetV1c", "depth": 50, "stem_channels": 128, "norm_cfg": {"type": "BN"}}
    converted = convert_official("resnet_deep_stem", shallow)
    MODELS.build(config).load_state_dict(converted, strict=True)
