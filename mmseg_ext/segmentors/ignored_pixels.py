"""Name losses that train ignored pixels, from the gradient on a few values.

mmsegmentation (1.2.2 and 1.4.2) passes `ignore_index` to every loss. `DiceLoss` and
`HuasdorffDisstanceLoss` read it, and still have a gradient at these pixels.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import nn

_SIZE = 8  # height and width of the maps


def losses_of_ignored_pixels(model: nn.Module) -> Iterator[str]:
    """Yield a warning for each loss of a decode head that trains ignored pixels."""
    for name, head in model.named_modules():
        losses = getattr(head, "loss_decode", None) if isinstance(head, BaseDecodeHead) else None
        for loss in losses if isinstance(losses, nn.ModuleList) else [losses]:
            if loss is not None and _trains_ignored_pixels(head, loss):
                yield (
                    f"model.{name}.loss_decode: {type(loss).__name__} also trains the pixels with "
                    f"ignore_index={head.ignore_index}; use a loss that ignores them (docs/faq.md)"
                )


def _trains_ignored_pixels(head: Any, loss: nn.Module) -> bool:
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
