"""The loss by strips against `BaseDecodeHead.loss_by_feat`, value and gradient."""

import copy
from collections.abc import Callable

import pytest
import torch
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import nn

from mmseg_ext.decode_heads import DANetEAHead
from mmseg_ext.segmentors.strip_losses import can_use_strips, strip_losses
from tests.segmentors.small import allocated_at_peak, pair
from tests.segmentors.test_strip_encoder_decoder import HEADS

CLASSES = 5
WEIGHTS = [0.5, 1.0, 2.0, 3.0, 1.5]
OHEM = dict(type="OHEMPixelSampler", min_kept=300)
LOSSES = {
    "plain": dict(),
    "scaled": dict(loss_weight=0.4),
    "sum": dict(reduction="sum", loss_weight=1e-4),
    "over valid pixels": dict(avg_non_ignore=True),
    "weighted": dict(class_weight=WEIGHTS),
    "two": [dict(loss_weight=0.7), dict(class_weight=WEIGHTS, loss_name="loss_weighted")],
    "two of one name": [dict(loss_weight=0.7), dict(class_weight=WEIGHTS)],
}


@pytest.fixture(autouse=True)
def _short_strips(monkeypatch):
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", 10_000)


def head(loss: dict | list = {}, align_corners: bool = False, classes: int = CLASSES, **kwargs):
    several = loss if isinstance(loss, list) else [loss]
    losses = [dict(type="CrossEntropyLoss", **one) for one in several]
    kwargs |= dict(num_classes=classes, align_corners=align_corners)
    kwargs["loss_decode"] = losses if isinstance(loss, list) else losses[0]
    return MODELS.build(dict(type="FCNHead", in_channels=4, channels=4, **kwargs))


def labelled(size=(45, 61), ignored: float = 0.2, classes: int = CLASSES) -> list[SegDataSample]:
    """Two label maps of which the first rows are to be ignored."""
    labels = torch.randint(0, classes, (2, 1, *size))
    labels[:, :, : round(ignored * size[0])] = 255
    return [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]


def stock_loss(decode_head: nn.Module, samples: list) -> Callable[[torch.Tensor], dict]:
    """mmsegmentation's loss; a test skips where 1.2.2 fails on class weights and ignored pixels."""

    def loss_of(logits: torch.Tensor) -> dict:
        try:
            return decode_head.loss_by_feat(logits, samples)
        except IndexError:
            pytest.skip("mmsegmentation's own loss indexes its class weights out of range")

    return loss_of


def with_gradient(loss_of, logits: torch.Tensor) -> tuple[dict, torch.Tensor]:
    leaf = logits.clone().requires_grad_()
    losses = loss_of(leaf)
    sum(value for name, value in losses.items() if "loss" in name).backward()
    return losses, leaf.grad


def assert_equal_losses(ours: dict, theirs: dict, tolerance: float) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].shape == value.shape
        assert ours[name].dtype == value.dtype
        bound = 1e-6 if name.endswith("acc_seg") else tolerance  # a count in float32, in per cent
        assert (ours[name] - value).abs() <= bound * max(1, value.abs())


def compared(decode_head: nn.Module, samples, logits, tolerance: float) -> tuple[dict, dict]:
    """Return our losses and mmsegmentation's, if they and their gradients are equal."""
    theirs, expected = with_gradient(stock_loss(decode_head, samples), logits)
    ours, gradient = with_gradient(lambda x: strip_losses(decode_head, x, samples), logits)
    assert_equal_losses(ours, theirs, tolerance)
    assert gradient.dtype == logits.dtype
    assert (gradient - expected).abs().max() <= tolerance * expected.abs().max()
    return ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("ignored", [0.0, 0.2, 1.0], ids=["no", "some", "all"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_value_and_gradient(dtype, ignored, loss, align_corners):
    logits = 5 * torch.randn(2, CLASSES, 7, 9, dtype=dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    ours, _ = compared(head(loss, align_corners), labelled(ignored=ignored), logits, tolerance)
    if ignored < 1:
        assert 5 < ours["acc_seg"] < 60


def test_probabilities_that_underflow_keep_their_loss():
    """A label whose probability is zero in float32 costs what its score says, not infinity."""
    _, theirs = compared(head(), labelled(), torch.randn(2, CLASSES, 7, 9) * 200, 1e-6)
    assert theirs["loss_ce"] > 100


def test_class_weights_average_over_valid_pixels():
    """mmsegmentation raises for them with `avg_non_ignore`; its default is that average."""
    samples = labelled()
    logits = torch.randn(2, CLASSES, 7, 9)
    expected = stock_loss(head(dict(class_weight=WEIGHTS)), samples)(logits)
    ours = strip_losses(head(dict(class_weight=WEIGHTS, avg_non_ignore=True)), logits, samples)
    assert_equal_losses(ours, expected, 1e-6)


@pytest.mark.parametrize("ignored", [0.2, 1.0], ids=["some", "all"])
@pytest.mark.parametrize("loss", ["plain", "weighted", "two"])
@pytest.mark.parametrize("thresh", [0.7, 1e-4])
def test_hard_examples(ignored, loss, thresh):
    """OHEM: the same pixels, by the threshold and by the number to keep."""
    decode_head = head(LOSSES[loss], sampler=dict(OHEM, thresh=thresh))
    samples = labelled(ignored=ignored)
    logits = 5 * torch.randn(2, CLASSES, 7, 9, dtype=torch.float64)
    _, theirs = compared(decode_head, samples, logits, 1e-12)
    if ignored < 1:
        decode_head.sampler = None
        assert theirs["loss_ce"] != decode_head.loss_by_feat(logits, samples)["loss_ce"]


def test_half_precision_logits_give_losses_in_single():
    decode_head = head()
    samples = labelled()
    logits = torch.randn(2, CLASSES, 7, 9).bfloat16()
    theirs, expected = with_gradient(stock_loss(decode_head, samples), logits.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, gradient = with_gradient(lambda x: strip_losses(decode_head, x, samples), logits)
    assert_equal_losses(ours, theirs, 1e-6)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient, expected.bfloat16(), rtol=0, atol=0)


def test_memory_is_that_of_the_low_resolution():
    """150 classes at stride 8: a tenth of one map at full resolution, where stock holds three."""
    decode_head, samples = head(classes=150), labelled((128, 160), classes=150)
    logits = torch.randn(2, 150, 16, 20)
    one_map = 2 * 150 * 128 * 160 * 4

    def step(loss_of):
        with torch.enable_grad():
            with_gradient(loss_of, logits)

    stock = allocated_at_peak(lambda: step(stock_loss(decode_head, samples)))
    ours = allocated_at_peak(lambda: step(lambda x: strip_losses(decode_head, x, samples)))
    assert stock > 2.9 * one_map
    assert ours < 0.1 * one_map


@pytest.mark.parametrize(
    "changes",
    [
        dict(loss=dict(use_sigmoid=True)),
        dict(loss=dict(reduction="none")),
        dict(loss=[dict(), dict(use_sigmoid=True, loss_name="loss_bce")]),
        dict(out_channels=1, threshold=0.5, classes=2),
        dict(sampler=OHEM),
    ],
    ids=["sigmoid", "not reduced", "one of two", "one channel", "OHEM without a threshold"],
)
def test_other_losses_take_the_usual_path(changes):
    assert can_use_strips(head())
    assert not can_use_strips(head(**changes))


# --- whole segmentors ----------------------------------------------------------------------------


def training_step(model: nn.Module, inputs: torch.Tensor, samples: list) -> tuple[dict, dict]:
    torch.manual_seed(1)  # dropout
    losses = model.loss(inputs, copy.deepcopy(samples))
    model.parse_losses(losses)[0].backward()
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@MODELS.register_module()
class _OneMoreLoss(DANetEAHead):
    """Its parent's `named_logits` does not speak for a `loss_by_feat` that came later."""

    def loss_by_feat(self, seg_logits, batch_data_samples):
        losses = super().loss_by_feat(seg_logits, batch_data_samples)
        return losses | {"loss_more": seg_logits[1].square().mean()}


DICE = dict(type="DiceLoss", loss_name="loss_dice")
OTHER_LOSSES = {
    "one more": dict(type="_OneMoreLoss", memory_size=8),
    "OHEM": dict(sampler=dict(type="OHEMPixelSampler", thresh=0.7, min_kept=100)),
    "with Dice": dict(loss_decode=[dict(type="CrossEntropyLoss"), DICE]),
    "STDC": dict(
        type="STDCHead",
        boundary_threshold=0.1,
        num_classes=2,
        num_convs=1,
        concat_input=False,
        loss_decode=[dict(type="CrossEntropyLoss", loss_name="loss_ce"), DICE],
    ),
}


AUXILIARY = dict(type="FCNHead", in_index=2, in_channels=32, channels=8, num_classes=CLASSES)
AUXILIARY["loss_decode"] = dict(type="CrossEntropyLoss", loss_weight=0.4)
AUXILIARIES = {
    "an auxiliary head": dict(auxiliary=AUXILIARY),
    "two": dict(auxiliary=[AUXILIARY, dict(AUXILIARY, in_index=1, in_channels=16)]),
}
TRAINED = HEADS | OTHER_LOSSES | AUXILIARIES
del TRAINED["Enc without its second loss"]  # mmsegmentation cannot train it


@pytest.mark.parametrize("head", TRAINED.values(), ids=TRAINED)
def test_losses_and_gradients_of_every_kind_of_head(head):
    stock, ours = pair(**head)
    inputs = torch.randn(2, 3, 32, 48)
    samples = labelled((32, 48), classes=ours.num_classes)
    theirs, expected = training_step(stock.double().train(), inputs.double(), samples)
    losses, gradients = training_step(ours.double().train(), inputs.double(), samples)
    assert_equal_losses(losses, theirs, 1e-6)
    assert gradients.keys() == expected.keys()
    largest = max(g.abs().max() for g in expected.values())
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).abs().max() <= 1e-6 * largest, name


def test_a_compiler_leaves_the_loop_over_strips_out():
    """Two graphs, what comes before and after it, also where there are many strips."""
    decode_head, samples, graphs = head(), labelled(), []

    def step(logits: torch.Tensor) -> torch.Tensor:
        return strip_losses(decode_head, 2 * logits, samples)["loss_ce"] + 1

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    logits = torch.randn(2, CLASSES, 9, 11)
    torch._dynamo.reset()
    assert torch.compile(step, backend=backend)(logits) == step(logits)
    assert len(graphs) == 2
