"""The exported form of a segmentor; tests/commands/test_export.py has more models and formats."""

import pytest
import torch

from mmseg_ext import get_model
from mmseg_ext.inference.export import (
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


def test_what_cannot_be_exported_is_refused(tmp_path):
    with raises_message(ValueError, "16x24", where=tmp_path / "a.onnx"):
        write_onnx(torch.nn.Linear(5, 5), tmp_path / "a.onnx", (16, 24))
    with pytest.raises(ValueError, match="Linear"):
        WholeImageSegmentor(torch.nn.Linear(1, 1))
    model = small()
    model.decode_head.predict_by_feat = lambda *args: None  # not a resize
    with pytest.raises(ValueError, match="FCNHead"):
        WholeImageSegmentor(model)
