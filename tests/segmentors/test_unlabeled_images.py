"""A batch in which no pixel counts has loss 0 and gradient 0, whatever the loss is."""

import copy

import mmseg
import pytest
import torch
from mmengine.utils import digit_version
from mmseg.models.losses import LovaszLoss
from mmseg.registry import MODELS

from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.segmentors.unlabeled_images import mask_unlabeled
from tests.engine.runs import write_config
from tests.segmentors.small import labelled, segmentor

LOSSES = {
    "cross-entropy": {"type": "CrossEntropyLoss"},
    "Lovasz": {"type": "LovaszLoss", "reduction": "none"},
    "Lovasz of all classes": {"type": "LovaszLoss", "reduction": "none", "classes": "all"},
    "Lovasz per image": {"type": "LovaszLoss", "per_image": True},
    "Lovasz per image, sum": {"type": "LovaszLoss", "per_image": True, "reduction": "sum"},
    "dice": {"type": "DiceLoss"},
    "naive dice": {"type": "DiceLoss", "naive_dice": True, "use_sigmoid": False},
    "Tversky": {"type": "TverskyLoss"},
    "OHEM": {"type": "OhemCrossEntropy", "min_kept": 10},
    "Hausdorff": {"type": "HuasdorffDisstanceLoss"},
}
if digit_version(mmseg.__version__) >= digit_version("1.3"):  # 1.2 looks up the weight of 255
    LOSSES["weighted cross-entropy"] = {"type": "CrossEntropyLoss", "class_weight": [1.0, 2.0, 3.0]}
LOGITS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(3, (2, 8, 8), generator=torch.Generator().manual_seed(0))
IGNORED = torch.full((2, 8, 8), 255)


def head_with(loss: dict) -> torch.nn.Module:
    """Return a head of three classes whose loss has been masked."""
    settings = {"type": "FCNHead", "in_channels": 4, "channels": 4, "num_classes": 3}
    head = MODELS.build({**settings, "loss_decode": dict(loss)})
    mask_unlabeled(head)
    return head


def loss_and_gradient(loss, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = LOGITS.clone().requires_grad_()
    is_ohem = type(loss).__name__ == "OhemCrossEntropy"  # whose call has no further arguments
    value = loss(logits, labels, **({} if is_ohem else {"weight": None, "ignore_index": 255}))
    value = value.mean()
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_labels_trains_nothing(name):
    loss = head_with(LOSSES[name]).loss_decode
    for _ in range(2):
        value, gradient = loss_and_gradient(loss, IGNORED)
        assert value == 0 and torch.equal(gradient, torch.zeros_like(gradient))
        assert loss_and_gradient(loss, LABELS)[1].any()


@pytest.mark.parametrize("name", LOSSES)
def test_other_batches_have_mmsegmentations_loss(name):
    """Bit by bit, also with ignored pixels in each image, and in copies."""
    ours = head_with(LOSSES[name]).loss_decode
    theirs = MODELS.build(dict(LOSSES[name]))
    partly = LABELS.masked_fill(torch.rand(LABELS.shape) < 0.6, 255)
    for labels in (LABELS, partly):
        expected = loss_and_gradient(theirs, labels)
        for loss in (ours, copy.deepcopy(ours)):
            assert all(map(torch.equal, loss_and_gradient(loss, labels), expected))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_lovasz_of_one_image_of_two(reduction):
    """Of the other image it is 0, as in the binary form."""
    settings = {"type": "LovaszLoss", "per_image": True, "reduction": reduction}
    labels = torch.stack([IGNORED[0], LABELS[1]])
    value, gradient = loss_and_gradient(head_with(settings).loss_decode, labels)
    alone = LovaszLoss(per_image=True, reduction="sum")(LOGITS[1:], LABELS[1:], ignore_index=255)
    torch.testing.assert_close(value, alone / (2 if reduction == "mean" else 1))
    assert gradient[1].any() and not gradient[0].any()


def test_a_segmentor_masks_all_its_heads():
    lovasz = {"type": "LovaszLoss", "reduction": "none"}
    auxiliary = {"type": "FCNHead", "in_channels": 32, "in_index": 2, "channels": 8}
    auxiliary |= {"num_classes": 5, "loss_decode": lovasz}
    loss = [{"type": "CrossEntropyLoss"}, lovasz]
    model = segmentor(kind="StripEncoderDecoder", auxiliary=auxiliary, loss_decode=loss).train()
    losses = model.loss(torch.randn(2, 3, 32, 32), labelled((32, 32), ignored=1.0))
    total = sum(value.mean() for name, value in losses.items() if "loss" in name)
    total.backward()
    assert len(losses) == 5 and total == 0
    assert not any(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("loss", ["Lovasz", "Lovasz per image", "dice"])
def test_commands_mask_mmsegmentations_segmentors(loss, tmp_path):
    settings = {"model.type": "EncoderDecoder", "model.decode_head.loss_decode": LOSSES[loss]}
    config = write_config(tmp_path)
    model = build_train_runner(str(config), settings, str(tmp_path / "work")).model.train()
    losses = model.loss(torch.randn(2, 3, 32, 32), labelled((32, 32), ignored=1.0))
    total = sum(value.mean() for name, value in losses.items() if "loss" in name)
    total.backward()
    assert total == 0 and not any(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("labeled", [1, 128])
def test_ohem_of_certain_pixels_is_zero(labeled):
    """It keeps none of them; logits that are not finite are still reported."""
    loss = head_with(LOSSES["OHEM"]).loss_decode
    labels = IGNORED.flatten().index_fill(0, torch.arange(labeled), 0).view(2, 8, 8)
    logits = torch.zeros(2, 3, 8, 8)
    logits[:, 0] = 1e3
    logits.requires_grad_()
    value = loss(logits, labels)
    (gradient,) = torch.autograd.grad(value, logits)
    assert value == 0 and not gradient.any()
    assert loss(logits * torch.nan, labels).isnan()
