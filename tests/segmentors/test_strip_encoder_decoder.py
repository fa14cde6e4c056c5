"""`StripEncoderDecoder` against mmsegmentation's `EncoderDecoder` with the same weights."""

import copy

import pytest
import torch
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from mmseg_ext.segmentors import StreamingSegTTAModel, StripEncoderDecoder
from tests.segmentors.small import allocated_at_peak, pair, segmentor

PYRAMID = dict(in_channels=[8, 16, 32, 64], in_index=[0, 1, 2, 3])
LAST_TWO = dict(in_channels=[32, 64], in_index=[2, 3])
HEADS = {
    "FCN": dict(),
    "DA": dict(type="DAHead", pam_channels=4),
    "PSP": dict(type="PSPHead", pool_scales=(1, 2)),
    "Enc": dict(type="EncHead", num_codes=4, **LAST_TWO),
    "Enc without its second loss": dict(type="EncHead", num_codes=4, use_se_loss=False, **LAST_TWO),
    "UPer": dict(type="UPerHead", pool_scales=(1, 2), **PYRAMID),
    "FPN": dict(type="FPNHead", feature_strides=[4, 8, 8, 8], **PYRAMID),
    "SegFormer": dict(type="SegformerHead", **PYRAMID),
    "EA": dict(type="EAHead", ea_channels=16, memory_size=8),
    "JSegEA": dict(type="JSegEAHead", memory_size=8),
    "DANetEA": dict(type="DANetEAHead", memory_size=8),
    "DANetEA, one branch": dict(type="DANetEAHead", memory_size=8, channel_attention=False),
    "MaSA": dict(type="MaSAHead", num_heads=2),
}


def images(count: int = 3, size: tuple[int, int] = (40, 56)) -> tuple[torch.Tensor, list]:
    """A batch whose images differ in original size, padding and flip."""
    metas = [
        dict(ori_shape=(61, 83), img_padding_size=(0, 5, 0, 3)),
        dict(ori_shape=(25, 33), flip=True, flip_direction="horizontal"),
        dict(ori_shape=size, padding_size=[4, 0, 2, 1], flip=True, flip_direction="vertical"),
    ]
    samples = [
        SegDataSample(metainfo=dict(img_shape=size, pad_shape=size, **meta))
        for meta in metas[:count]
    ]
    return torch.randn(count, 3, *size), samples


@pytest.mark.parametrize("slide", [False, True], ids=["whole", "slide"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_labels_and_scores_of_every_kind_of_head(head, slide):
    stock, ours = pair(slide=slide, keep_logits=True, **head)
    inputs, samples = images()
    with torch.no_grad():
        mean = stock.encode_decode(inputs, [dict(img_shape=inputs.shape[2:])]).mean((0, 2, 3))
        for model in (stock, ours):  # every class is somewhere the best
            model.decode_head.conv_seg.bias -= mean
        theirs = stock.predict(inputs, copy.deepcopy(samples))
        result = ours.predict(inputs, copy.deepcopy(samples))
    for a, b in zip(result, theirs, strict=True):
        expected = b.seg_logits.data
        assert (a.seg_logits.data - expected).abs().max() <= 1e-5 * expected.abs().max()
        labels, best = (a.pred_sem_seg.data, b.pred_sem_seg.data), expected.topk(2, dim=0).values
        clear = best[0] - best[1] >= 1e-5  # H, W
        assert clear.float().mean() >= 0.999
        assert torch.equal(*(label[0][clear] for label in labels))
    assert len(torch.cat([s.pred_sem_seg.data.unique() for s in result]).unique()) > 2


def test_one_output_channel():
    stock, ours = pair(channels=2, out_channels=1, threshold=0.6, keep_logits=True)
    inputs, samples = images()
    with torch.no_grad():
        theirs = stock.predict(inputs, copy.deepcopy(samples))
    result = ours.predict(inputs, samples)  # with gradients enabled
    for a, b in zip(result, theirs, strict=True):
        torch.testing.assert_close(a.seg_logits.data, b.seg_logits.data, rtol=0, atol=1e-6)
        assert 0 < b.pred_sem_seg.data.mean() < 1  # both classes occur
        clear = (b.seg_logits.data - 0.6).abs() > 1e-5
        torch.testing.assert_close(
            a.pred_sem_seg.data[clear], b.pred_sem_seg.data[clear], rtol=0, atol=0
        )


def test_autocast_leaves_the_resize_in_single_precision():
    """Only the network's products are in half precision: the labels are those of its logits."""
    _, ours = pair(keep_logits=True)
    inputs, samples = images()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        (result, *_) = ours.predict(inputs, samples)
        logits = ours.decode_head(ours.extract_feat(inputs))
    assert logits.dtype == torch.bfloat16 and result.seg_logits.data.dtype == torch.float32
    full, _ = pair(keep_logits=True)
    full.extract_feat = lambda x: x
    full.decode_head.forward = lambda x: logits.float()
    expected = full.predict(inputs, images()[1])[0].seg_logits.data
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
    view = dict(inputs=[inputs[0]], data_samples=[sample])
    data = {key: [value] * 6 for key, value in view.items()}
    merged = StreamingSegTTAModel(ours)
    peak = allocated_at_peak(lambda: merged.test_step(copy.deepcopy(data)))
    assert peak - 6 * low < 0.35 * one_map


# --- what is refused -----------------------------------------------------------------------------


@MODELS.register_module()
class _PredictsOtherwise(FCNHead):
    def predict(self, inputs, batch_img_metas, test_cfg):
        return super().predict(inputs, batch_img_metas, test_cfg) * 2


def strips(**options):
    return segmentor(kind="StripEncoderDecoder", **options)


def with_gaps():
    head = dict(type="FCNHead", in_channels=512, channels=8, num_classes=3)
    test_cfg = dict(mode="slide", crop_size=(32, 32), stride=(40, 40))
    return StripEncoderDecoder(dict(type="ResNetV1c", depth=18), head, test_cfg=test_cfg)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: strips(type="_PredictsOtherwise"), r"_PredictsOtherwise .*type='EncoderDecoder'"),
        (lambda: strips(type="OCRHead", ocr_channels=8), "OCRHead .*type='CascadeEncoderDecoder'"),
        (lambda: StripEncoderDecoder({}, [{}, {}]), "decode_head.*CascadeEncoderDecoder"),
        (with_gaps, r"stride=\(40, 40\)"),
        (lambda: StreamingSegTTAModel(strips(), merge="mean"), "merge='mean'"),
        (
            lambda: StreamingSegTTAModel(
                strips(channels=2, out_channels=1, threshold=0.5), merge="logits"
            ),
            "merge='logits'",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
