"""The loss by strips against `BaseDecodeHead.loss_by_feat`, value and gradient."""

from collections.abc import Callable

import pytest
import torch
from mmengine.structures import PixelData
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import CrossEntropyLoss, cross_entropy
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from benchmarks.operators import OperatorCounter
from mmseg_ext.decode_heads import DANetEAHead
from mmseg_ext.segmentors import StreamingSegTTAModel
from mmseg_ext.segmentors.strip_losses import (
    StripCrossEntropy,
    can_use_strips,
    strip_losses,  # of one head
)
from tests.models import Operators
from tests.segmentors.small import allocated_at_peak, batch_of_two, labelled, pair, segmentor
from tests.segmentors.test_strip_encoder_decoder import HEADS

CLASSES = 5
WEIGHTS = [0.5, 1.0, 2.0, 3.0, 1.5]
WEIGHTED = dict(class_weight=WEIGHTS)
TWO = [dict(loss_weight=0.7), dict(class_weight=WEIGHTS, loss_name="loss_weighted")]


def head(loss: dict | list = {}, align_corners: bool = False, classes: int = CLASSES, **kwargs):
    several = loss if isinstance(loss, list) else [loss]
    losses = [dict(type="CrossEntropyLoss", **one) for one in several]
    kwargs |= dict(num_classes=classes, align_corners=align_corners)
    kwargs["loss_decode"] = losses if isinstance(loss, list) else losses[0]
    return MODELS.build(dict(type="FCNHead", in_channels=4, channels=4, **kwargs))


def stock_loss(decode_head: nn.Module, samples: list) -> Callable[[torch.Tensor], dict]:
    """mmsegmentation's loss; a test skips where 1.2.2 fails on class weights and ignored pixels."""

    def loss_of(logits: torch.Tensor) -> dict:
        try:
            return decode_head.loss_by_feat(logits, samples)
        except IndexError:
            pytest.skip("mmsegmentation's own loss indexes its class weights out of range")

    return loss_of


def our_loss(decode_head: nn.Module, samples: list) -> Callable[[torch.Tensor], dict]:
    return lambda logits: strip_losses(decode_head, {"": logits}, samples)


def with_gradient(loss_of: Callable, logits: torch.Tensor) -> tuple[dict, torch.Tensor]:
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


def compared(decode_head: nn.Module, samples, logits, tolerance: float) -> dict:
    """Return the losses, if ours and their gradients equal mmsegmentation's."""
    theirs, expected = with_gradient(stock_loss(decode_head, samples), logits)
    ours, gradient = with_gradient(our_loss(decode_head, samples), logits)
    assert_equal_losses(ours, theirs, tolerance)
    assert gradient.dtype == logits.dtype
    assert (gradient - expected).abs().max() <= tolerance * expected.abs().max()
    return ours


def test_probabilities_that_underflow_keep_their_loss():
    """A label whose probability is zero in float32 costs what its score says, not infinity."""
    losses = compared(head(TWO), labelled(), torch.randn(2, CLASSES, 7, 9) * 200, 1e-6)
    assert losses["loss_weighted"] > 100 and 5 < losses["acc_seg"] < 60


def test_class_weights_average_over_valid_pixels():
    """mmsegmentation raises for them with `avg_non_ignore`; its default is that average."""
    samples = labelled()
    logits = torch.randn(2, CLASSES, 7, 9)
    expected = stock_loss(head(WEIGHTED), samples)(logits)
    ours = strip_losses(head(dict(WEIGHTED, avg_non_ignore=True)), {"": logits}, samples)
    assert_equal_losses(ours, expected, 1e-6)


def test_half_precision_logits_give_losses_in_single():
    decode_head, samples = head(), labelled()
    logits = torch.randn(2, CLASSES, 7, 9).bfloat16()
    theirs, expected = with_gradient(stock_loss(decode_head, samples), logits.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, gradient = with_gradient(our_loss(decode_head, samples), logits)
    assert_equal_losses(ours, theirs, 1e-6)
    torch.testing.assert_close(gradient, expected.bfloat16(), rtol=0, atol=0)


def test_second_derivatives_are_an_error():
    logits = torch.randn(2, CLASSES, 4, 5, requires_grad=True)
    loss = our_loss(head(), labelled((16, 20)))(logits)["loss_ce"]
    with pytest.raises(RuntimeError, match="EncoderDecoder"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_memory_is_that_of_the_low_resolution():
    """150 classes at stride 8: a tenth of one map at full resolution, where stock holds three."""
    decode_head, samples = head(classes=150), labelled((128, 160), classes=150)
    logits = torch.randn(2, 150, 16, 20)
    one_map = 2 * 150 * 128 * 160 * 4
    stock, ours = (
        allocated_at_peak(torch.enable_grad()(lambda f=f: with_gradient(f, logits)))
        for f in (stock_loss(decode_head, samples), our_loss(decode_head, samples))
    )
    assert stock > 2.9 * one_map
    assert ours < 0.1 * one_map


def _gradients(classes: int, logits, label, weight, align_corners: bool, together: bool):
    """Return the sum of the losses of all pixels, its gradient, and the hits."""
    leaf, label = logits.clone().requires_grad_(), label.transpose(0, 1)  # H, B, W
    ignored = label == classes
    weight = None if weight is None else weight[label] * ~ignored
    label = label.masked_fill(ignored, 0)
    loss, hits = StripCrossEntropy.apply(leaf, label, ignored, weight, align_corners, together)
    return loss, *torch.autograd.grad(loss, leaf), hits


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("align_corners", [False, True])
def test_images_together_and_one_by_one(rows, weighted, align_corners, monkeypatch):
    """The strips of a GPU, with all images, and of a CPU: as cross-entropy after a resize."""
    batch, classes, width = 3, 6, 29
    strip = rows * batch * width * classes * 8  # bytes
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", strip)
    logits = 3 * torch.randn(batch, classes, 5, 7, dtype=torch.float64)
    label = torch.randint(0, classes + 1, (batch, 23, width))  # the last one is ignored
    weight = torch.rand(classes + 1, dtype=torch.float64) if weighted else None

    leaf = logits.clone().requires_grad_()
    scores = F.interpolate(leaf, (23, width), mode="bilinear", align_corners=align_corners)
    used = None if weight is None else weight[:-1]
    expected = F.cross_entropy(scores, label, used, ignore_index=classes, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(expected, leaf)
    expected_hits = (scores.argmax(1) == label).sum()
    for together in (False, True):
        loss, gradient, hits = _gradients(classes, logits, label, weight, align_corners, together)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)
        assert hits == expected_hits


def test_a_gpu_starts_as_many_operators_for_two_images_as_for_twenty():
    """They have one strip within the budget."""
    counts = []
    for images in (2, 20):
        labels = torch.zeros(images, 1, 32, 40, dtype=torch.long, device="meta")
        samples = [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]
        logits = torch.randn(images, CLASSES, 4, 5, device="meta", requires_grad=True)
        with OperatorCounter() as counter:
            torch.autograd.grad(strip_losses(head(), {"": logits}, samples)["loss_ce"], logits)
        counts.append(counter.counts.total())
    assert counts[0] == counts[1] <= 50


class _Doubled(CrossEntropyLoss):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


def test_other_and_changed_losses_take_the_usual_path():
    """The random settings compare those that a config can name."""
    others, calls = {name: head() for name in ("hook", "criterion", "subclass")}, []
    others["hook"].loss_decode.register_forward_hook(lambda *args: calls.append(args))
    others["criterion"].loss_decode.cls_criterion = lambda *a, **k: 2 * cross_entropy(*a, **k)
    others["subclass"].loss_decode = _Doubled()
    assert can_use_strips(head())
    assert not [name for name, other in others.items() if can_use_strips(other)]

    _, model = pair()
    model.decode_head = others["hook"]
    model.decode_head.forward = lambda features: torch.randn(2, CLASSES, 4, 4, requires_grad=True)
    model.train().loss(torch.randn(2, 3, 32, 32), labelled((32, 32)))
    assert len(calls) == 1


def test_no_operator_is_nondeterministic_on_cuda():
    decode_head, samples = head(WEIGHTED), labelled()
    logits = torch.randn(2, CLASSES, 7, 9, requires_grad=True)
    strip_losses(decode_head, {"": logits}, samples)  # builds the maps
    with Operators() as operators:
        loss = strip_losses(decode_head, {"": logits}, samples)["loss_ce"]
        torch.autograd.grad(loss, logits)
    assert "scatter_" in operators.names
    forbidden = ("nll_loss2d", "upsample", "scatter_add", "index_add", "cumsum", "bincount", "put_")
    assert not [n for n in operators.names if n.startswith(forbidden)]


class _Products(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.precisions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if "mm" in function.__name__ or function.__name__ == "matmul":
            new = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # since torch 2.9
            self.precisions.append(new or torch.get_float32_matmul_precision())
        return function(*args, **(kwargs or {}))


def test_products_with_resize_matrices_are_exact_under_tf32():
    decode_head, samples = head(), labelled()
    logits = torch.randn(2, CLASSES, 7, 9, requires_grad=True)
    model = StreamingSegTTAModel(segmentor(kind="StripEncoderDecoder"), merge="logits")
    torch.set_float32_matmul_precision("medium")
    try:
        with _Products() as products:
            loss = strip_losses(decode_head, {"": logits}, samples)["loss_ce"]
            torch.autograd.grad(loss, logits)
            before = len(products.precisions)
            model.test_step(batch_of_two())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert 4 <= before < len(products.precisions)
    assert set(products.precisions) <= {"highest", "ieee"}


def test_a_compiler_leaves_the_loop_over_strips_out():
    """Two graphs, what comes before and after it, also where there are many strips."""
    decode_head, samples, graphs = head(), labelled(), []

    def step(logits: torch.Tensor) -> torch.Tensor:
        return strip_losses(decode_head, {"": 2 * logits}, samples)["loss_ce"] + 1

    logits = torch.randn(2, CLASSES, 9, 11)
    torch._dynamo.reset()
    compiled = torch.compile(step, backend=lambda graph, inputs: graphs.append(graph) or graph)
    assert compiled(logits) == step(logits)
    assert len(graphs) == 2


@MODELS.register_module()
class _OneMoreLoss(DANetEAHead):
    """Its parent's `named_logits` does not speak for a `loss_by_feat` that came later."""

    def loss_by_feat(self, seg_logits, batch_data_samples):
        losses = super().loss_by_feat(seg_logits, batch_data_samples)
        return losses | {"loss_more": seg_logits[1].square().mean()}


@MODELS.register_module()
class _OnlyNames(DANetEAHead):
    """A head with several outputs that has only `named_logits`."""

    predict, loss_by_feat = BaseDecodeHead.predict, BaseDecodeHead.loss_by_feat
    named_logits = DANetEAHead.named_logits


@pytest.mark.parametrize("sampler", [None, dict(type="OHEMPixelSampler", thresh=0.7, min_kept=9)])
def test_named_logits_are_enough(sampler):
    """Also for losses at full resolution."""
    inputs, settings, found = torch.randn(2, 3, 32, 48), dict(memory_size=8, sampler=sampler), []
    for kind in ("DANetEAHead", "_OnlyNames"):
        torch.manual_seed(1)
        model = segmentor(kind="StripEncoderDecoder", type=kind, **settings)
        labels = [s.pred_sem_seg.data for s in model.predict(inputs)]
        found.append((model.loss(inputs, labelled((32, 48))), torch.stack(labels)))
    (theirs, expected), (ours, labels) = found
    assert_equal_losses(ours, theirs, 0)
    assert torch.equal(labels, expected)


WITH_DICE = [dict(type="CrossEntropyLoss"), dict(type="DiceLoss", loss_name="loss_dice")]
STDC = dict(boundary_threshold=0.1, num_classes=2, num_convs=1, concat_input=False)
AUXILIARY = dict(type="FCNHead", in_index=2, in_channels=32, channels=8, num_classes=CLASSES)
AUXILIARY["loss_decode"] = dict(type="CrossEntropyLoss", loss_weight=0.4)
TRAINED = HEADS | {
    "one more loss": dict(type="_OneMoreLoss", memory_size=8),
    "STDC": dict(type="STDCHead", loss_decode=WITH_DICE, **STDC),
    "an auxiliary head": dict(auxiliary=AUXILIARY),
    "two": dict(auxiliary=[AUXILIARY, dict(AUXILIARY, in_index=1, in_channels=16)]),
}


@pytest.mark.parametrize("head", TRAINED.values(), ids=TRAINED)
def test_losses_and_gradients_of_every_kind_of_head(head):
    inputs, results = torch.randn(2, 3, 32, 48).double(), []
    for model in pair(**head):
        torch.manual_seed(1)  # labels and dropout
        samples = labelled((32, 48), classes=model.num_classes)
        losses = model.double().train().loss(inputs, samples)
        model.parse_losses(losses)[0].backward()
        named = model.named_parameters()
        results.append((losses, {name: p.grad for name, p in named if p.grad is not None}))
    (theirs, expected), (ours, gradients) = results
    assert_equal_losses(ours, theirs, 1e-6)
    assert gradients.keys() == expected.keys()
    largest = max(g.abs().max() for g in expected.values())
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).abs().max() <= 1e-6 * largest, name
