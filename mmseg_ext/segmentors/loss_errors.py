"""Explain in one line the settings of a head that do not fit its features or its label maps."""

from typing import Any

from torch import Tensor, nn

from mmseg_ext.errors import LaunchError, RunError


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
    reason = _of_features(head, inputs) or wrong_class_weights(head)
    if reason is not None:
        raise LaunchError(f"{key}.{reason}") from error
    try:
        values = {v for s in data_samples for v in s.gt_sem_seg.data.unique().tolist()}
    except RuntimeError:  # unreadable labels, as on a GPU after a failed kernel: `error` is shown
        return
    outside = sorted(v for v in values - {head.ignore_index} if not 0 <= v < head.num_classes)
    if outside:
        number, hint = head.num_classes, ""
        if 255 in outside:  # what mmsegmentation pads with, and crops and rotates
            hint = f"; if 255 is padding, set seg_pad_val={head.ignore_index} in data_preprocessor"
        text = f"{key}.num_classes={number}: the labels have values {outside}{hint}"
        raise RunError(text) from error


def _of_features(head: Any, inputs: list[Tensor]) -> str | None:
    found = [x.shape[1] for x in inputs]
    several = isinstance(head.in_index, list | tuple)
    try:
        chosen = [found[i] for i in (head.in_index if several else [head.in_index])]
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


def wrong_class_weights(head: Any) -> str | None:
    """Return the key in the head's config of class weights that do not fit, and why they do not."""
    losses = head.loss_decode if isinstance(head.loss_decode, nn.ModuleList) else [head.loss_decode]
    for loss in losses:
        weights = getattr(loss, "class_weight", None)
        number = head.num_classes
        if isinstance(weights, list | tuple) and len(weights) not in (number, head.out_channels):
            return f"loss_decode.class_weight: {len(weights)} numbers for {number} classes"
    return None
