"""Errors of a decode head in training: wrong `in_channels`, labels without a class, unfit losses.

`explain_loss_error` is for an error of a head whose inputs are known, and `explain_training_error`
for an error of any segmentor's training step. Before the training `losses_of_ignored_pixels`
computes the gradient on a few values: mmsegmentation (1.2.2 and 1.4.2) passes `ignore_index` to
every loss; `DiceLoss` and `HuasdorffDisstanceLoss` read it, and still have a gradient at these
pixels.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from mmseg.models.decode_heads import DAHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import cross_entropy
from torch import Tensor, nn

from mmseg_ext.errors import LaunchError, RunError, format_error, labels_outside

_SIZE = 8  # height and width of the maps
# Of BaseDecodeHead; some heads inherit from it without calling its constructor, and have no loss,
# or one of depths.
_OF_HEADS = ("ignore_index", "loss_decode", "num_classes", "out_channels")


def heads_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the decode heads that have a loss of labels, with their names."""
    for name, module in model.named_modules():
        if all(hasattr(module, attribute) for attribute in _OF_HEADS):
            yield name, module


def explain_loss_error(
    key: str,
    head: Any,
    inputs: list[Tensor],
    data_samples: list[Any],
    error: Exception,
) -> None:
    """Raise the error of a run if the head's settings are the reason for the error of its loss.

    `key` is the head's key in the config, `inputs` are the feature maps of the backbone or neck.

    Raises:
        LaunchError: for settings that are wrong in every process.
        RunError: for label maps, which only one process may have.
    """
    if "gt_sem_seg" not in data_samples[0]:
        pipeline = "train_dataloader.dataset.pipeline"
        raise LaunchError(f"{pipeline} has no type='LoadAnnotations'; add it") from error
    reason = _of_features(head, inputs) or wrong_loss(head)
    if reason is not None:
        raise LaunchError(f"{key}.{reason}") from error
    values = set()
    try:
        for sample in data_samples:
            values.update(sample.gt_sem_seg.data.unique().tolist())
    except RuntimeError:  # unreadable labels, as on a GPU after a failed kernel: `error` is shown
        return
    outside = sorted(values - {*range(head.num_classes), head.ignore_index})
    if outside:
        raise _labels_without_class(key, head, outside) from error


def _labels_without_class(key: str, head: Any, values: list[int]) -> RunError:
    expected = f"0 to {head.num_classes - 1}"
    text = labels_outside(head.num_classes, values, expected, head.ignore_index)
    hint = "set their number, or find the files with `mmseg-ext check_dataset CONFIG`"
    if 255 in values:  # what mmsegmentation pads with, and crops and rotates
        hint = f"if 255 is padding, set seg_pad_val={head.ignore_index} in data_preprocessor"
    return RunError(f"{key}.num_classes={head.num_classes}: {text}; {hint}")


def _of_features(head: Any, inputs: list[Tensor]) -> str | None:
    """Return the setting that does not fit the feature maps, and why it does not."""
    found = [x.shape[1] for x in inputs]
    several = isinstance(head.in_index, list | tuple)
    indices = head.in_index if several else [head.in_index]
    try:
        chosen = [found[i] for i in indices]
    except IndexError:
        return f"in_index={head.in_index}: the backbone returns {len(found)} feature maps"
    if head.input_transform == "multiple_select":
        fits = chosen == list(head.in_channels)
    else:
        fits = sum(chosen) == head.in_channels
    if fits:
        return None
    width = chosen if several else chosen[0]
    return f"in_channels={head.in_channels}: in_index={head.in_index} has {width} channels"


def losses_by_key(head: Any) -> dict[str, Any]:
    """Return the losses of a decode head by their key in its config."""
    losses = head.loss_decode
    if not isinstance(losses, nn.ModuleList):
        return {"loss_decode": losses}
    return {f"loss_decode.{i}": loss for i, loss in enumerate(losses)}


def wrong_loss(head: Any) -> str | None:
    """Return the key in the head's config of a loss that does not fit it, and why it does not."""
    for loss in losses_by_key(head).values():
        if head.out_channels == 1 and getattr(loss, "cls_criterion", None) is cross_entropy:
            todo = "set use_sigmoid=True"
            return f"loss_decode.use_sigmoid=False: the softmax of one channel is always 1; {todo}"
        weights = getattr(loss, "class_weight", None)
        number = head.num_classes
        if isinstance(weights, list | tuple) and len(weights) not in (number, head.out_channels):
            return f"loss_decode.class_weight: {len(weights)} numbers for {number} classes"
    return None


def explain_training_error(model: nn.Module, error: Exception) -> Exception | None:
    """Explain labels that a decode head has no class for, and losses that fail for any labels."""
    # torch, on a CPU: 'Target 21 is out of bounds.'
    label = re.search(r"Target (\d+) is out of bounds", str(error))
    for name, head in heads_of(model):
        if label and int(label[1]) >= head.num_classes:
            return _labels_without_class(f"model.{name}", head, [int(label[1])])
        # Other heads may call their losses with other arguments.
        usual = type(head).loss_by_feat in (BaseDecodeHead.loss_by_feat, DAHead.loss_by_feat)
        if not usual and not hasattr(head, "named_logits"):
            continue
        device = next(head.parameters()).device
        try:
            logits = torch.zeros(1, head.out_channels, 4, 4, device=device)
        except RuntimeError:  # after a failed kernel
            continue
        for key, loss in losses_by_key(head).items():
            try:
                loss(logits, logits[:, 0].long(), weight=None, ignore_index=head.ignore_index)
            except Exception as failure:
                if type(failure) is type(error):
                    return LaunchError(
                        f"model.{name}.{key}.type={type(loss).__name__!r}: fails for "
                        f"{head.out_channels} classes and legal labels on {device} "
                        f"({format_error(failure)}); correct its settings, or use another loss"
                    )
    return None


def losses_of_ignored_pixels(model: nn.Module) -> Iterator[str]:
    """Yield a warning for each loss of a decode head that trains ignored pixels."""
    for name, head in heads_of(model):
        for loss in losses_by_key(head).values():
            if _trains_ignored_pixels(head, loss):
                yield (
                    f"model.{name}.loss_decode: {type(loss).__name__} also trains the pixels with "
                    f"ignore_index={head.ignore_index}; use a loss that ignores them (docs/faq.md)"
                )


def _trains_ignored_pixels(head: Any, loss: nn.Module) -> bool:
    """Return whether the loss has a gradient at ignored pixels, on random logits and labels."""
    values = torch.Generator().manual_seed(0)
    logits = torch.randn(2, head.out_channels, _SIZE, _SIZE, generator=values, requires_grad=True)
    labels = torch.randint(head.num_classes, (2, _SIZE, _SIZE), generator=values)
    labels[:, : _SIZE // 2] = head.ignore_index
    try:
        with torch.random.fork_rng(devices=[]):
            loss = copy.deepcopy(loss).cpu()
            result = loss(logits, labels, weight=None, ignore_index=head.ignore_index)
        (gradient,) = torch.autograd.grad(result.sum(), logits)
    except Exception:  # of any loss; the first iteration has the same error, and explains it
        return False
    ignored = gradient[:, :, : _SIZE // 2].abs().sum()
    return bool(ignored > 1e-4 * gradient.abs().sum())  # the rest is rounding
