"""Encoders of timm: maps of any image, as timm computes them. `tests/test_timm.py` has timm."""

import math
import sys

import pytest
import torch
from mmseg.registry import MODELS

from mmseg_ext.backbones import TimmEncoder
from mmseg_ext.errors import StackError
from tests.messages import raises_message

timm = pytest.importorskip("timm")

# A small network of each family: its maps, their channels and strides.
FAMILIES = {
    "test_resnet": ([0, 1, 2, 3, 4], [32, 32, 48, 192, 96], [2, 4, 8, 16, 32]),
    "test_convnext": ([0, 1, 2, 3], [24, 32, 48, 64], [4, 8, 16, 32]),
    "test_efficientnet": ([0, 1, 2, 3, 4], [16, 24, 32, 48, 64], [2, 4, 8, 16, 32]),
    "test_vit": ([0, 2, 3, 5], [64] * 4, [4, 8, 16, 32]),
}
DYNAMIC = {"test_vit": {"dynamic_img_size": True}}


def build(name: str, **changes) -> TimmEncoder:
    config = dict(type="TimmEncoder", model_name=name, out_indices=FAMILIES[name][0])
    return MODELS.build(config | DYNAMIC.get(name, {}) | changes)


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_of_any_image(name):
    """Of the image's size divided by the stride, rounded up; finite, with gradients everywhere."""
    _, channels, strides = FAMILIES[name]
    model = build(name, in_channels=5)
    assert model.feature_info.channels() == channels and model.feature_info.reduction() == strides
    for size in ((64, 96), (67, 33), (5, 1)):
        maps = model(torch.randn(2, 5, *size))
        for y, channel, stride in zip(maps, channels, strides, strict=True):
            assert y.shape == (2, channel, -(-size[0] // stride), -(-size[1] // stride))
    sum(y.sum() for y in model(torch.randn(2, 5, 64, 96))).backward()
    without = [key for key, value in model.named_parameters() if value.grad is None]
    assert not without


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_are_those_of_timm(name):
    """For sizes that fit; of a plain transformer the map of the patches' stride."""
    model, image = build(name).eval(), torch.randn(1, 3, 64, 96)
    kind = dict(out_indices=FAMILIES[name][0], **DYNAMIC.get(name, {}))
    theirs = timm.create_model(name, features_only=True, **kind).eval()
    values = model.model.state_dict().values()  # only the names differ
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)))
    with torch.no_grad():
        expected, maps = theirs(image), model(image)
    shown = [2] if name == "test_vit" else range(len(maps))
    for i in shown:
        torch.testing.assert_close(maps[i], expected[i], rtol=1e-4, atol=1e-4)


def test_patches_of_other_sizes():
    """Of 14 pixels, whose strides are no integers, and of 8."""
    small = dict(embed_dim=24, depth=4, num_heads=2, dynamic_img_size=True)
    for patch, strides in ((14, [3.5, 7, 14, 28]), (8, [4, 8, 16, 32])):
        size = dict(img_size=4 * patch, patch_size=patch)
        model = TimmEncoder("vit_tiny_patch16_224", [0, 1, 2, 3], **small, **size)
        assert model.strides == strides
        sizes = [tuple(y.shape[2:]) for y in model(torch.randn(1, 3, 50, 61))]
        assert sizes == [(math.ceil(50 / s), math.ceil(61 / s)) for s in strides]


def test_initial_values_stay():
    """timm initializes its networks when it builds them; `init_weights` is for `init_cfg`."""
    model = build("test_vit")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.init_weights()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_errors(monkeypatch):
    with raises_message(ValueError, "nothing", where="TimmEncoder: "):
        TimmEncoder("nothing", [0])
    with raises_message(ValueError, "test_vit needs four", where="out_indices=[0, 1]: "):
        TimmEncoder("test_vit", [0, 1])
    monkeypatch.setitem(sys.modules, "timm", None)
    with raises_message(StackError, "timm]", where="the package 'timm'"):
        build("test_vit")
