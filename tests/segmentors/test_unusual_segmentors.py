"""Valid uses of `StripEncoderDecoder` that are rare: each does what mmsegmentation's parts do."""

import copy
import types

import pytest
import torch
from mmseg.models.losses import CrossEntropyLoss, cross_entropy
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from mmseg_ext.segmentors import StreamingSegTTAModel
from mmseg_ext.segmentors.score_maps import merged_prediction
from mmseg_ext.segmentors.strip_losses import can_use_strips, strip_losses
from tests.models import Operators
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
    assert can_use_strips(head())
    assert not any(map(can_use_strips, changed.values()))

    _, model = pair()
    model.decode_head = changed["hook"]
    model.decode_head.forward = lambda features: torch.randn(2, CLASSES, 4, 4, requires_grad=True)
    model.train().loss(torch.randn(2, 3, 32, 32), labelled((32, 32)))
    assert len(calls) == 1


def test_the_threshold_itself_is_background():
    """mmsegmentation compares with `>`: a probability of exactly 0.5 is not foreground."""
    for kind in ("EncoderDecoder", "StripEncoderDecoder"):
        model = segmentor(2, kind=kind, out_channels=1, threshold=0.5)
        nn.init.zeros_(model.decode_head.conv_seg.weight)
        nn.init.zeros_(model.decode_head.conv_seg.bias)
        for threshold, share in ((0.5, 0), (0.49, 1)):
            model.decode_head.threshold = threshold
            merged = StreamingSegTTAModel(model).test_step(batch_of_two())
            for sample in (*merged, *model.predict(*images())):
                assert sample.pred_sem_seg.data.mean() == share


def test_scores_of_an_earlier_prediction_do_not_stay():
    model = segmentor(kind="StripEncoderDecoder")
    model.test_cfg.keep_logits = True
    inputs, samples = images()
    assert all("seg_logits" in sample for sample in model.predict(inputs, samples))
    model.test_cfg.keep_logits = False
    assert not any("seg_logits" in sample for sample in model.predict(inputs, samples))


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


def replaced(model: nn.Module, method: str) -> nn.Module:
    """Replace a method of the decode head's instance: scores and losses are those of -2 logits."""
    head = model.decode_head
    own = getattr(head, method)
    if "loss" in method:
        changed = lambda self, *args: {k: 3 * v for k, v in own(*args).items()}  # noqa: E731
    else:
        changed = lambda self, *args: -2 * own(*args)  # noqa: E731
    setattr(head, method, types.MethodType(changed, head))
    return model


@pytest.mark.parametrize("method", ["predict", "predict_by_feat", "loss", "loss_by_feat"])
def test_methods_set_on_an_instance_are_called(method):
    stock, ours = (replaced(model, method) for model in pair())
    inputs, samples = images()
    with torch.no_grad():
        theirs = stock.predict(inputs, copy.deepcopy(samples))
        result = ours.predict(inputs, copy.deepcopy(samples))
        merged = StreamingSegTTAModel(ours).test_step(batch_of_two())
        expected = StreamingSegTTAModel(stock).test_step(batch_of_two())
        labels = labelled((40, 56))
        losses = [m.loss(inputs[:2], labels)["decode.loss_ce"] for m in (ours, stock)]
    for a, b in zip([*result, *merged], [*theirs, *expected], strict=True):
        differs = a.pred_sem_seg.data != b.pred_sem_seg.data
        assert differs.float().mean() <= (1e-3 if "loss" in method else 0)
    assert torch.allclose(*losses, rtol=1e-5) and losses[0] > 1
    assert torch.equal(*losses) or "predict" in method


@pytest.mark.parametrize("create_graph", [False, True])
def test_no_operator_is_nondeterministic_on_cuda(create_graph):
    """torch.use_deterministic_algorithms lists them; the strips stay in use with it."""
    decode_head, samples = head(LOSSES["weighted"]), labelled()
    logits = torch.randn(2, CLASSES, 7, 9, requires_grad=True)
    strip_losses(decode_head, logits, samples)  # builds the maps
    torch.use_deterministic_algorithms(True)
    try:
        assert can_use_strips(decode_head)
        with Operators() as operators:
            loss = strip_losses(decode_head, logits, samples)["loss_ce"]
            (gradient,) = torch.autograd.grad(loss, logits, create_graph=create_graph)
            if create_graph:
                torch.autograd.grad(gradient.square().sum(), logits)
    finally:
        torch.use_deterministic_algorithms(False)
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
    model = segmentor(kind="StripEncoderDecoder")
    maps = model.score_maps(torch.randn(1, 3, 32, 32), None)
    torch.set_float32_matmul_precision("medium")
    try:
        with _Products() as products:
            loss = strip_losses(decode_head, logits, samples)["loss_ce"]
            torch.autograd.grad(loss, logits, create_graph=True)
            merged_prediction(maps, "logits", None, False)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(products.precisions) > 4 and set(products.precisions) <= {"highest", "ieee"}


def test_fake_tensors_leave_nothing_behind():
    """Shapes are computed under FakeTensorMode, and the maps of a real run are real."""
    model = segmentor(kind="StripEncoderDecoder")
    decode_head, samples, logits = head(), labelled((39, 51)), torch.randn(2, CLASSES, 7, 9)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(logits).requires_grad_()
        loss = strip_losses(decode_head, fake, samples)["loss_ce"]
        assert torch.autograd.grad(loss, fake)[0].shape == logits.shape
        found = model.predict(mode.from_tensor(torch.randn(1, 3, 36, 44)), None)
        assert found[0].pred_sem_seg.data.shape == (1, 36, 44)
    assert strip_losses(decode_head, logits, samples)["loss_ce"] > 1
    assert model.predict(torch.randn(1, 3, 36, 44), None)[0].pred_sem_seg.data.max() < CLASSES
