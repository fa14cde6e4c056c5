"""Valid uses of `StripEncoderDecoder` that are rare: each does what mmsegmentation's parts do."""

import pytest
import torch
from mmengine.structures import PixelData
from mmseg.models.losses import CrossEntropyLoss, cross_entropy
from mmseg.models.segmentors import SegTTAModel
from mmseg.registry import MODELS
from torch import nn

from mmseg_ext.segmentors import StreamingSegTTAModel
from mmseg_ext.segmentors.score_maps import merged_prediction
from mmseg_ext.segmentors.strip_losses import strip_losses, takes_strips
from tests.segmentors.small import batch_of_two, pair, segmentor
from tests.segmentors.test_strip_encoder_decoder import images
from tests.segmentors.test_strip_losses import CLASSES, LOSSES, head, labelled, stock_loss


@pytest.mark.parametrize("loss", ["plain", "weighted", "over valid pixels"])
def test_second_derivatives(loss):
    """A gradient penalty: the gradient of a squared gradient, with a constant incoming factor."""
    decode_head, samples = head(LOSSES[loss]), labelled((16, 20))
    leaf = torch.randn(2, CLASSES, 4, 5, dtype=torch.float64)

    def penalty(loss_of) -> torch.Tensor:
        w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        x = leaf * w
        (g,) = torch.autograd.grad(loss_of(x)["loss_ce"], x, create_graph=True)
        return torch.autograd.grad((g**2).sum(), w)[0]

    expected = penalty(stock_loss(decode_head, samples))
    ours = penalty(lambda x: strip_losses(decode_head, x, samples))
    assert expected != 0
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=0)


class _Doubled(CrossEntropyLoss):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


def test_a_loss_that_somebody_changed_takes_the_usual_path():
    changed = {name: head() for name in ("hook", "criterion", "subclass")}
    calls = []
    changed["hook"].loss_decode.register_forward_hook(lambda *args: calls.append(args))
    changed["criterion"].loss_decode.cls_criterion = lambda *a, **k: 2 * cross_entropy(*a, **k)
    changed["subclass"].loss_decode = _Doubled()
    assert takes_strips(head())
    assert not any(map(takes_strips, changed.values()))

    _, model = pair()
    model.decode_head = changed["hook"]
    model.decode_head.forward = lambda features: torch.randn(2, CLASSES, 4, 4, requires_grad=True)
    model.train().loss(torch.randn(2, 3, 32, 32), labelled((32, 32)))
    assert len(calls) == 1


@MODELS.register_module()
class _WithoutBaseInit(MODELS.get("FCNHead")):
    """As K-Net's `IterativeDecodeHead`: the attributes of `BaseDecodeHead`, less its threshold."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        del self.threshold


def test_a_head_without_a_threshold_predicts():
    kind = dict(type="_WithoutBaseInit", num_convs=1, concat_input=False)
    model = segmentor(kind="StripEncoderDecoder", **kind)
    inputs, samples = images()
    assert all("pred_sem_seg" in sample for sample in model.predict(inputs, samples))


def test_the_threshold_itself_is_background():
    """mmsegmentation compares with `>`: a probability of exactly 0.5 is not foreground."""
    model = segmentor(2, kind="StripEncoderDecoder", out_channels=1, threshold=0.5)
    nn.init.zeros_(model.decode_head.conv_seg.weight)
    nn.init.zeros_(model.decode_head.conv_seg.bias)
    (scores,) = model.score_maps(torch.randn(1, 3, 32, 32), None)
    assert merged_prediction([scores], "probs", 0.5, False)["pred_sem_seg"].sum() == 0
    assert merged_prediction([scores], "probs", 0.49, False)["pred_sem_seg"].all()


def test_code_that_asks_for_scores_is_told_how_to_keep_them():
    model = segmentor(kind="StripEncoderDecoder")
    inputs, samples = images()
    (sample, *_) = model.predict(inputs, samples)
    with pytest.raises(AttributeError, match="keep_logits"):
        sample.seg_logits  # noqa: B018
    with pytest.raises(AttributeError, match="keep_logits"):
        SegTTAModel(module=model).test_step(batch_of_two())
    sample.seg_logits = PixelData(data=torch.zeros(CLASSES, 61, 83))
    assert sample.seg_logits.shape == (61, 83)


def test_scores_of_an_earlier_prediction_do_not_stay():
    model = segmentor(kind="StripEncoderDecoder")
    model.test_cfg.keep_logits = True
    inputs, samples = images()
    assert all("seg_logits" in sample for sample in model.predict(inputs, samples))
    model.test_cfg.keep_logits = False
    assert not any("seg_logits" in sample for sample in model.predict(inputs, samples))


def test_a_head_in_double_precision_under_single_precision_images():
    model = segmentor(kind="StripEncoderDecoder")
    model.test_cfg.keep_logits = True
    head_forward = model.decode_head.double().forward
    model.decode_head.forward = lambda maps: head_forward([x.double() for x in maps])
    (sample, *_) = model.predict(*images())
    assert sample.seg_logits.data.dtype == torch.float64


@pytest.mark.parametrize("tta", [False, True], ids=["one view", "merged"])
def test_a_class_with_a_bias_of_minus_infinity_never_wins(tta):
    model = segmentor(kind="StripEncoderDecoder")
    with torch.no_grad():
        model.decode_head.conv_seg.bias[2] = -torch.inf
    if tta:
        found = StreamingSegTTAModel(model).test_step(batch_of_two())
    else:
        found = model.predict(*images())
    for sample in found:
        labels = sample.pred_sem_seg.data
        assert not (labels == 2).any() and len(labels.unique()) > 1


def test_a_list_of_decode_heads_is_named():
    config = dict(type="StripEncoderDecoder", backbone=dict(), decode_head=[dict(), dict()])
    with pytest.raises(ValueError, match=r"decode_head.*CascadeEncoderDecoder"):
        MODELS.build(config)
