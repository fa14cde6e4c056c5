"""The Lovasz loss on a CPU is mmsegmentation's, and its gradient has the digits of float64."""

import pytest
import torch
from mmseg.models.losses import LovaszLoss
from torch import Tensor

from mmseg_ext.segmentors.fast_lovasz import FastLovaszLoss
from tests.segmentors.small import segmentor

SETTINGS = {
    "present classes": {},
    "all classes": {"classes": "all"},
    "chosen classes": {"classes": [2, 0], "loss_weight": 0.4},
    "weights": {"class_weight": [0.5, 2.0, 1.0, 3.0]},
}


def a_batch(seed: int, ignored: float, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Return logits (2, classes, 9, 7) and labels without the last class, some of them 255."""
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, classes, 9, 7, generator=random)
    label = torch.randint(classes - 1, (2, 9, 7), generator=random)
    label.masked_fill_(torch.rand(2, 9, 7, generator=random) < ignored, 255)
    label[0, 0, :2] = 0  # mmsegmentation fails for one pixel
    return logits, label


def by_definition(logits: Tensor, label: Tensor, loss: LovaszLoss) -> Tensor:
    """Return the mean over classes of the sorted errors times the differences of Jaccard losses."""
    keep = label != 255
    probs, target = logits.softmax(1).movedim(1, -1)[keep], label[keep]
    losses = []
    for c in range(logits.shape[1]) if isinstance(loss.classes, str) else loss.classes:
        is_class = (target == c).to(probs)
        if loss.classes == "present" and not is_class.any():
            continue
        errors, order = (is_class - probs[:, c]).abs().sort(descending=True, stable=True)
        hits = is_class[order].cumsum(0)
        rank = torch.arange(1, len(hits) + 1)
        jaccard = 1 - (hits[-1] - hits) / (hits[-1] + rank - hits)
        weight = 1 if loss.class_weight is None else loss.class_weight[c]
        losses.append(weight * (errors * jaccard.diff(prepend=jaccard.new_zeros(1))).sum())
    return loss.loss_weight * torch.stack(losses).mean()


def gradient_of(loss, logits: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits, *args, **kwargs)
    return value.detach(), torch.autograd.grad(2 * value, logits)[0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("ignored", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("name", SETTINGS)
def test_loss_and_gradient_are_those_of_the_definition(name, ignored, layout):
    kinds = (FastLovaszLoss, LovaszLoss)
    fast, other = (kind(reduction="none", **SETTINGS[name]) for kind in kinds)
    for seed in range(3):
        logits, label = a_batch(seed, ignored)
        logits = logits.contiguous(memory_format=layout)
        found = gradient_of(fast, logits, label, weight=None, ignore_index=255)
        expected = gradient_of(by_definition, logits.double(), label, fast)
        for one, exact in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), exact, rtol=1e-5, atol=1e-7)
        published = other(logits, label, ignore_index=255)
        torch.testing.assert_close(found[0], published, rtol=1e-5, atol=1e-6)


def test_equal_errors_and_pixels_without_an_error():
    """In the order of the pixels, as PyTorch's stable sort; a certain pixel has no gradient."""
    label = torch.tensor([[[0, 1, 0, 1, 1, 0]]])
    logits = torch.zeros(1, 2, 1, 6)
    logits[0, 0, 0, 4:] = torch.tensor([-200.0, 200.0])
    found, published = (
        gradient_of(kind(reduction="none"), logits, label) for kind in (FastLovaszLoss, LovaszLoss)
    )
    torch.testing.assert_close(found, published)
    assert found[1][..., :4].all() and not found[1][..., 4:].any()


def test_a_loss_that_is_not_finite_stays_so():
    logits, label = a_batch(0, 0.2)
    logits[0, 1, 2, 3] = float("nan")
    label[0, 2, 3] = 0
    assert FastLovaszLoss(reduction="none")(logits, label).isnan()


def test_what_is_computed_as_before():
    """Each image by itself, bfloat16 outside of autocast, and no ignored label."""
    logits, label = a_batch(0, 0.2)
    for scores, settings in ((logits, {"per_image": True}), (logits.bfloat16(), {})):
        settings = {"reduction": "mean" if settings else "none", **settings}
        values = []
        for kind in (FastLovaszLoss, LovaszLoss):
            try:
                values.append(kind(**settings)(scores, label, ignore_index=255))
            except RuntimeError as error:  # the dot product of two types
                values.append(str(error))
        assert values[0] == values[1]
    label = label.clamp(max=2)  # no pixel is ignored
    one, other = (
        kind(reduction="none")(logits, label, ignore_index=None)
        for kind in (FastLovaszLoss, LovaszLoss)
    )
    assert one == other


def test_a_segmentor_selects_it_for_mmsegmentations_class():
    settings = {"type": "LovaszLoss", "reduction": "none", "loss_weight": 0.3}
    for lovasz, kind in ((settings, FastLovaszLoss), ({"type": _Own}, _Own)):
        losses = [{"type": "CrossEntropyLoss"}, lovasz]
        model = segmentor(kind="StripEncoderDecoder", loss_decode=losses)
        loss = model.decode_head.loss_decode[1]
        assert type(loss) is kind and loss.loss_weight == lovasz.get("loss_weight", 1.0)


class _Own(LovaszLoss):
    def __init__(self, **_):
        super().__init__(reduction="none")
