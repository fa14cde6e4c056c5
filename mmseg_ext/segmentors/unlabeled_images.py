"""Losses of images without a labeled pixel: 0, with a gradient of 0.

Sparse annotations give such crops. mmsegmentation's cross-entropy then is 0. Its `LovaszLoss` is
the mean of no value, NaN, and with `per_image` an error next to labeled images; `OhemCrossEntropy`
has no gradient; Dice and Tversky losses train their prediction away. `mask_unlabeled` gives them
labels that fit, and multiplies the result by 0. `OhemCrossEntropy` is NaN also if it keeps no
pixel, because all labeled ones are certain; it is 0 then. All other batches have the same loss, bit
by bit.
"""

from typing import Any

import torch
from mmseg.models.losses import CrossEntropyLoss, OhemCrossEntropy
from torch import Tensor, nn

from mmseg_ext.segmentors.head_errors import heads_of, losses_by_key

_CERTAIN = 1e4  # the softmax of it and its negative is exactly 1 and 0, also in float16


def mask_unlabeled(model: nn.Module) -> None:
    """Make the losses of a segmentor's heads 0 for batches without labels, in place."""
    for _, head in heads_of(model):
        for loss in losses_by_key(head).values():
            if type(loss) is not CrossEntropyLoss:
                _hook(loss)


def _hook(loss: nn.Module) -> None:
    labeled: list[Tensor] = []  # of the call: whether any pixel is

    def before(module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        # `OhemCrossEntropy` knows it from its config.
        ignored = kwargs.get("ignore_index", getattr(module, "ignore_label", None))
        if len(args) != 2 or type(ignored) is not int:  # not a call with logits and labels
            return None
        logits, label = args  # (B, C, H, W), (B, H, W)
        empty = (label == ignored).flatten(1).all(1)  # B; a Python number would wait for a GPU
        labeled.append(~empty.all())
        if getattr(module, "per_image", False) and logits.dim() == 4 and logits.shape[1] > 1:
            # The loss of an image that has class 0 everywhere, with certainty, is 0.
            certain = torch.full_like(logits, -_CERTAIN)
            certain[:, 0] = _CERTAIN
            logits = torch.where(empty[:, None, None, None], certain, logits)
            label = label.masked_fill(empty[:, None, None], 0)
        return (logits, label.masked_fill(empty.all(), 0)), kwargs

    def after(module: nn.Module, args: tuple, output: Any) -> Any:
        if not labeled:
            return output
        counts = labeled.pop()
        if isinstance(module, OhemCrossEntropy):
            # The mean of no pixel. A mean of logits that are not finite stays NaN, and is reported.
            kept_none = output.isnan() & args[0].isfinite().all()
            output = torch.where(kept_none, torch.zeros_like(output), output)
        if isinstance(output, list):  # of losses, which mmengine adds
            return [value * counts for value in output]
        return output * counts

    loss.register_forward_pre_hook(before, with_kwargs=True)
    loss.register_forward_hook(after)
