"""`StripEncoderDecoder` against mmsegmentation's `EncoderDecoder` with the same weights."""

import copy
import types

import pytest
import torch
from mmseg.models import SegTTAModel
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import nn

from mmseg_ext.segmentors import StreamingSegTTAModel, StripEncoderDecoder

# The cache of maps is not visible in results.
from mmseg_ext.segmentors.score_maps import axis_map, resized
from tests.segmentors.small import (
    ONE_CHANNEL,
    allocated_at_peak,
    batch_of_two,
    labelled,
    pair,
    segmentor,
)

PYRAMID = dict(in_channels=[8, 16, 32, 64], in_index=[0, 1, 2, 3])
LAST_TWO = dict(in_channels=[32, 64], in_index=[2, 3])
HEADS = {
    "FCN": dict(),
    "DA": dict(type="DAHead", pam_channels=4),
    "PSP": dict(type="PSPHead", pool_scales=(1, 2)),
    "Enc": dict(type="EncHead", num_codes=4, **LAST_TWO),
    "UPer": dict(type="UPerHead", pool_scales=(1, 2), **PYRAMID),
    "FPN": dict(type="FPNHead", feature_strides=[4, 8, 8, 8], **PYRAMID),
    "SegFormer": dict(type="SegformerHead", **PYRAMID),
    "EA": dict(type="EAHead", ea_channels=16, memory_size=8),
    "JSegEA": dict(type="JSegEAHead", memory_size=8),
    "DANetEA": dict(type="DANetEAHead", memory_size=8),
    "DANetEA, one branch": dict(type="DANetEAHead", memory_size=8, channel_attention=False),
    "MaSA": dict(type="MaSAHead", num_heads=2),
    "UNetEA": dict(type="UNetEAHead", memory_size=8, **PYRAMID),
}
PREDICTED = HEADS | {
    "one channel": ONE_CHANNEL,
    # mmsegmentation cannot train it
    "Enc without its second loss": dict(type="EncHead", num_codes=4, use_se_loss=False, **LAST_TWO),
}


def strips(**options) -> StripEncoderDecoder:
    return segmentor(kind="StripEncoderDecoder", **options)


def images() -> tuple[torch.Tensor, list]:
    """A batch whose images differ in original size, padding and flip."""
    metas = [
        dict(ori_shape=(61, 83), img_padding_size=(0, 5, 0, 3)),
        dict(ori_shape=(25, 33), flip=True, flip_direction="horizontal"),
        dict(ori_shape=(40, 56), padding_size=[4, 0, 2, 1], flip=True, flip_direction="vertical"),
        dict(ori_shape=(30, 1)),
    ]
    samples = [
        SegDataSample(metainfo=dict(img_shape=(40, 56), pad_shape=(40, 56), **meta))
        for meta in metas
    ]
    return torch.randn(4, 3, 40, 56), samples


@pytest.mark.parametrize("slide", [False, True], ids=["whole", "slide"])
@pytest.mark.parametrize("head", PREDICTED.values(), ids=PREDICTED)
def test_labels_and_scores_of_every_kind_of_head(head, slide):
    """Of windows that overlap unequally, since the last ones are shifted.

    The random settings combine corners that are aligned or not with both modes.
    """
    models = pair(slide=slide, align_corners=not slide, keep_logits=True, **head)
    stock, ours = (model.double() for model in models)
    inputs, samples = images()
    inputs = inputs.double()
    with torch.no_grad():
        mean = stock.encode_decode(inputs, [dict(img_shape=inputs.shape[2:])]).mean((0, 2, 3))
        for model in models:  # every class is somewhere the best
            model.decode_head.conv_seg.bias -= mean
        theirs = stock.predict(inputs, copy.deepcopy(samples))
    result = ours.predict(inputs, samples)  # with gradients enabled
    for a, b in zip(result, theirs, strict=True):
        torch.testing.assert_close(a.seg_logits.data, b.seg_logits.data, rtol=0, atol=1e-11)
        torch.testing.assert_close(a.pred_sem_seg.data, b.pred_sem_seg.data, rtol=0, atol=0)
    classes = torch.cat([sample.pred_sem_seg.data.flatten() for sample in result]).unique()
    assert len(classes) > 2 or len(classes) == ours.num_classes


def test_autocast_leaves_the_resize_in_single_precision():
    """Only the network's products are in half precision: the labels are those of its logits."""
    full, ours = pair(keep_logits=True)
    inputs, samples = images()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        (result, *_) = ours.predict(inputs, copy.deepcopy(samples))
        logits = ours.decode_head(ours.extract_feat(inputs))
    assert logits.dtype == torch.bfloat16 and result.seg_logits.data.dtype == torch.float32
    full.extract_feat = lambda x: x
    full.decode_head.forward = lambda x: logits.float()
    expected = full.predict(inputs, samples)[0].seg_logits.data
    assert (result.seg_logits.data - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_no_map_of_classes_at_full_resolution_is_held(monkeypatch):
    """One view and six, of 100 classes: less than a quarter of one map above the logits."""
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", 200_000)
    stock, ours = pair(channels=100)
    logits = torch.randn(1, 100, 24, 32)
    for model in (stock, ours):
        model.extract_feat = lambda x: x
        model.decode_head.forward = lambda x: logits
    one_map = 100 * 192 * 256 * 4
    low = logits.numel() * 4
    sample = SegDataSample(metainfo=dict(ori_shape=(192, 256), img_shape=(192, 256)))
    inputs = torch.zeros(1, 3, 192, 256)
    assert allocated_at_peak(lambda: stock.predict(inputs, [sample.clone()])) > 1.9 * one_map
    assert allocated_at_peak(lambda: ours.predict(inputs, [sample.clone()])) < 0.25 * one_map
    data = dict(inputs=[[inputs[0]]] * 6, data_samples=[[sample]] * 6)
    merged = StreamingSegTTAModel(ours)
    peak = allocated_at_peak(lambda: merged.test_step(copy.deepcopy(data)))
    assert peak - 6 * low < 0.35 * one_map


def test_maps_are_built_once_for_each_dtype_and_device():
    """Also in inference mode, whose tensors autograd would refuse later."""
    like = torch.zeros(1)
    with torch.inference_mode():
        first = axis_map(resized, 7, 23, False, like=like)
    assert axis_map(resized, 7, 23, False, like=like.bfloat16()) is first  # float32 for both
    assert not first.matrix.is_inference()
    assert axis_map(resized, 7, 23, False, like=like.double()).matrix.dtype == torch.float64
    assert axis_map(resized, 7, 23, False, like=like.to("meta")).matrix.device.type == "meta"


def test_the_threshold_itself_is_background():
    """mmsegmentation compares with `>`: a probability of exactly 0.5 is not foreground."""
    for model in pair(**ONE_CHANNEL):
        nn.init.zeros_(model.decode_head.conv_seg.weight)
        nn.init.zeros_(model.decode_head.conv_seg.bias)
        for threshold, share in ((0.5, 0), (0.49, 1)):
            model.decode_head.threshold = threshold
            merged = StreamingSegTTAModel(model).test_step(batch_of_two())
            for sample in (*merged, *model.predict(*images())):
                assert sample.pred_sem_seg.data.mean() == share


@pytest.mark.parametrize("head", [dict(), ONE_CHANNEL], ids=["classes", "one channel"])
def test_logits_are_computed_when_they_are_read(head):
    """Also for mmsegmentation's test-time augmentation; fields and copies do not have them.

    Nor does a sample that is predicted again.
    """
    model, results = strips(**head).double(), {}
    for keep in (True, False):
        model.test_cfg.keep_logits = keep
        inputs, samples = images()
        torch.manual_seed(0)
        results[keep] = model.predict(torch.randn_like(inputs).double(), samples)
        merged = SegTTAModel(model).test_step(batch_of_two(ratios=(1.0,)))
        results[keep] += merged
    for kept, computed in zip(results[True], results[False], strict=True):
        assert torch.equal(computed.seg_logits.data, kept.seg_logits.data)
        assert torch.equal(computed.pred_sem_seg.data, kept.pred_sem_seg.data)
        assert "seg_logits" in kept.to_dict() and "seg_logits" not in computed.to_dict()
        assert not hasattr(computed.cpu(), "seg_logits")
    again = model.predict(inputs.double(), results[True][: len(inputs)])
    assert not any("seg_logits" in sample for sample in again)


def test_a_class_with_a_bias_of_minus_infinity_never_wins():
    model = strips()
    nn.init.constant_(model.decode_head.conv_seg.bias[2:3], -torch.inf)
    merged = StreamingSegTTAModel(model).test_step(batch_of_two())
    for sample in (*merged, *model.predict(*images())):
        labels = sample.pred_sem_seg.data
        assert not (labels == 2).any() and len(labels.unique()) > 1


OWN = [("decode_head", name) for name in ("predict", "predict_by_feat", "loss", "loss_by_feat")]
OWN += [("", "encode_decode"), ("", "whole_inference")]


@pytest.mark.parametrize(("part", "method"), OWN)
def test_own_methods_are_called(part, method):
    """Set on an instance of a head, or in a subclass of the segmentor."""

    def changed(owner, *args):
        own = getattr(super(type(owner), owner), method)(*args)
        return {k: -2 * v for k, v in own.items()} if "loss" in method else -2 * own

    found = []
    inputs, samples = images()
    for model in pair():
        if part:
            setattr(model.decode_head, method, types.MethodType(changed, model.decode_head))
        else:
            model.__class__ = type("Own", (type(model),), {method: changed})
        with torch.no_grad():
            merged = StreamingSegTTAModel(model).test_step(batch_of_two())
            seen = (*merged, *model.predict(inputs, copy.deepcopy(samples)))
            torch.manual_seed(1)  # dropout
            loss = model.loss(inputs[:2], labelled((40, 56)))["decode.loss_ce"]
        found.append((torch.cat([s.pred_sem_seg.data.flatten() for s in seen]), loss))
    (theirs, expected), (ours, loss) = found
    assert (ours != theirs).float().mean() <= (1e-3 if "loss" in method else 0)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert (loss == expected and loss < -1) if "loss" in method else loss > 1


@MODELS.register_module()
class _PredictsOtherwise(FCNHead):
    def predict(self, inputs, batch_img_metas, test_cfg):
        return super().predict(inputs, batch_img_metas, test_cfg) * 2


def with_gaps():
    head = dict(type="FCNHead", in_channels=512, channels=8, num_classes=3)
    test_cfg = dict(mode="slide", crop_size=(32, 32), stride=(40, 40))
    return StripEncoderDecoder(dict(type="ResNetV1c", depth=18), head, test_cfg=test_cfg)


def exchanging(model, *pairs):
    return StreamingSegTTAModel(model, swap_seg_labels=pairs)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: strips(type="_PredictsOtherwise"), r"_PredictsOtherwise .*type='EncoderDecoder'"),
        (lambda: strips(type="OCRHead", ocr_channels=8), "OCRHead .*'CascadeEncoderDecoder'"),
        (with_gaps, r"stride=\(40, 40\)"),
        (lambda: StreamingSegTTAModel(strips(), "mean"), "merge='mean'"),
        (lambda: StreamingSegTTAModel(strips(**ONE_CHANNEL), "logits"), "merge='logits'"),
        (lambda: exchanging(strips(), (0, 5)), r"swap_seg_labels=\[\(0, 5\)\]: .* 5 output"),
        (lambda: exchanging(strips(), (-1, 2)), r"swap_seg_labels=\[\(-1, 2\)\]: .* 5 output"),
        (lambda: exchanging(strips(**ONE_CHANNEL), (0, 1)), "swap_seg_labels=.* 1 output"),
    ],
)
def test_settings_that_cannot_work_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
