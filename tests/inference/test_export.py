"""The exported form of a segmentor; tests/commands/test_export.py has more models and formats."""

import itertools

import pytest
import torch
from mmcv.cnn.bricks.conv2d_adaptive_padding import Conv2dAdaptivePadding

from mmseg_ext import get_model
from mmseg_ext.inference.export import (
    SameConv2d,
    WholeImageSegmentor,
    random_images,
    relative_difference,
    write_onnx,
)
from mmseg_ext.inference.models import DEFAULT  # a model with a neck
from tests.messages import raises_message
from tests.segmentors.small import segmentor

AUXILIARY = dict(type="FCNHead", in_channels=32, in_index=2, channels=8, num_classes=5)


def small(**options) -> torch.nn.Module:
    return segmentor(kind="StripEncoderDecoder", auxiliary=AUXILIARY, **options)


@pytest.mark.parametrize("bgr_to_rgb", [True, False])
@pytest.mark.parametrize("build", [small, lambda: small(align_corners=True), None])
def test_scores_are_the_segmentors(build, bgr_to_rgb):
    """For an image as a pipeline loads it, BGR and normalized later; also with a neck."""
    model = build() if build else get_model(DEFAULT, pretrained=True)
    model.data_preprocessor._channel_conversion = bgr_to_rgb
    images = random_images((60, 70))
    inputs = model.data_preprocessor({"inputs": [images[0].flip(0)]})["inputs"]
    with torch.no_grad():
        expected = model.encode_decode(inputs, [{"img_shape": (60, 70)}])
        exported = WholeImageSegmentor(model)
        assert relative_difference(exported(images), expected) <= 1e-5
    assert not exported.training and "auxiliary_head" not in exported.parts


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    list(itertools.product((1, 2, 3, (5, 3)), (1, 2, (2, 3)), (1, 2))),
)
def test_padding_as_tensorflow(kernel, stride, dilation):
    """Equal to mmcv's for even and odd sizes, unless the kernel is smaller than its stride."""
    conv = Conv2dAdaptivePadding(2, 3, kernel, stride, dilation=dilation)
    axes = zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)
    is_covered = all(d * (k - 1) + 1 >= s for k, s, d in axes)
    assert SameConv2d.is_for(conv) == is_covered
    if not is_covered:
        return
    images = [torch.rand(2, 2, *size) for size in ((7, 8), (8, 9), (20, 33), (5, 5))]
    expected = list(map(conv, images))
    conv.__class__ = SameConv2d
    for image, output in zip(images, expected, strict=True):
        assert torch.equal(conv(image), output)


def test_sizes_behind_tensorflows_padding_stay_short():
    """mmcv's have 73, 260 and 847 characters after one, two and three layers."""
    layers = [Conv2dAdaptivePadding(3, 3, 3, stride=2) for _ in range(4)]
    for layer in layers:
        layer.__class__ = SameConv2d
    any_size = torch.export.Dim.DYNAMIC
    exported = torch.export.export(
        torch.nn.Sequential(*layers), (torch.rand(1, 3, 64, 96),), dynamic_shapes=(({2: any_size}),)
    )
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    size = str(output.args[0][0].meta["val"].shape[2])
    assert len(size) < 100, size


def test_what_cannot_be_exported_is_refused(tmp_path):
    with raises_message(ValueError, "16x24", where=tmp_path / "a.onnx"):
        write_onnx(torch.nn.Linear(5, 5), tmp_path / "a.onnx", (16, 24))
    with raises_message(ValueError, where=tmp_path / "b.onnx") as error:  # a temporary name
        write_onnx(torch.nn.Linear(5, 5), tmp_path / "a.onnx", (16, 24), name=tmp_path / "b.onnx")
    assert "a.onnx" not in str(error.value) and "\x1b" not in str(error.value)
    with pytest.raises(ValueError, match="Linear"):
        WholeImageSegmentor(torch.nn.Linear(1, 1))
    model = small()
    model.decode_head.predict_by_feat = lambda *args: None  # not a resize
    with pytest.raises(ValueError, match="FCNHead"):
        WholeImageSegmentor(model)
