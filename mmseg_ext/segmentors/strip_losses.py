"""Full-resolution cross-entropy and accuracy in strips, with the gradient from the forward pass.

The result is mmsegmentation 1.2.2's `BaseDecodeHead.loss_by_feat` (bilinear resize, losses,
`accuracy`) with `CrossEntropyLoss`. Computing a loss over many classes and its gradient in chunks
of the scores follows Liger-Kernel (arXiv 2410.10989). Here the chunks are strips of an image's
rows, and the gradient is stored at the resolution of the head's logits.

Every operation is deterministic on CUDA, so `randomness.deterministic=True` needs no other path.

Deviation: with class weights and `avg_non_ignore=True` mmsegmentation raises an IndexError if a
pixel is ignored. Here the average is over the weights of the other pixels.
"""

from functools import lru_cache
from itertools import product
from typing import Any

import torch
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import CrossEntropyLoss, cross_entropy
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.submodules import does_more_than_forward
from mmseg_ext.segmentors.score_maps import (
    AxisMap,
    resize_map,
    resized_strip,
    strip_height,
)
from mmseg_ext.torch_versions import exact_products
from mmseg_ext.upstream import label_maps

_EPS = torch.finfo(torch.float32).eps  # mmseg uses it in every dtype


def can_use_strips(head: BaseDecodeHead) -> bool:
    """Return whether the losses are reduced softmax cross-entropies of all pixels."""
    losses = _losses(head)
    known = head.sampler is None and type(head.ignore_index) is int and len(losses) > 0
    return known and head.out_channels > 1 and all(map(_known, losses))


def _losses(head: BaseDecodeHead) -> list[Any]:
    several = isinstance(head.loss_decode, nn.ModuleList)
    return list(head.loss_decode) if several else [head.loss_decode]


def _known(loss: nn.Module) -> bool:
    """Return whether it is mmseg's class with its criterion: no subclass, no hooks."""
    return (
        type(loss) is CrossEntropyLoss
        and loss.cls_criterion is cross_entropy
        and loss.reduction in ("mean", "sum")
        and not does_more_than_forward(loss)
    )


def strip_losses(
    head: BaseDecodeHead, logits: Tensor, data_samples: list[SegDataSample]
) -> dict[str, Tensor]:
    """Return `BaseDecodeHead.loss_by_feat` of logits (B, C, h, w), if the head `can_use_strips`.

    The losses are float32, or float64 for float64 logits.
    """
    # A compiler would unroll the loop over strips. As a decorator, `disable` would import
    # torch._dynamo with this module, which takes a second.
    uncompiled: Any = torch.compiler.disable(_strip_losses)
    return uncompiled(head, logits, data_samples)


def _strip_losses(
    head: BaseDecodeHead, logits: Tensor, data_samples: list[SegDataSample]
) -> dict[str, Tensor]:
    label = label_maps(head, data_samples).squeeze(1)  # B, H, W
    valid = label != head.ignore_index  # B, H, W
    losses: dict[str, Tensor] = {}
    hits = torch.zeros(())
    for loss in _losses(head):
        class_weight = _class_weights(loss, logits)
        total, hits, weight = StripCrossEntropy.apply(
            logits, label, valid, class_weight, head.align_corners
        )
        if loss.reduction == "mean":
            if class_weight is None:
                weight = valid.sum().to(total) if loss.avg_non_ignore else label.numel()
            total = total / (weight + _EPS)
        losses[loss.loss_name] = losses.get(loss.loss_name, 0) + loss.loss_weight * total
    accuracy = (hits + _EPS) * (100 / (valid.sum() + _EPS))
    return losses | {"acc_seg": accuracy.float().reshape(1)}


def _class_weights(loss: CrossEntropyLoss, logits: Tensor) -> Tensor | None:
    """Return the weights (C,) of the classes of logits (B, C, h, w), in float32 at least."""
    if loss.class_weight is None:
        return None
    device = torch.device("meta") if logits.is_meta else logits.device
    weights = _weights_on(device, full_precision(logits.dtype), tuple(loss.class_weight))
    if weights.shape != logits.shape[1:2]:
        raise ValueError(f"class_weight: {weights.numel()} numbers for {logits.shape[1]} classes")
    return weights


@lru_cache(8)
def _weights_on(device: torch.device, dtype: torch.dtype, weights: tuple[float, ...]) -> Tensor:
    """Return the weights on a device; a copy in each iteration would wait for a GPU."""
    # Autograd would refuse a tensor of inference mode later.
    with torch.inference_mode(False), torch.no_grad():
        return torch.tensor(weights, dtype=dtype, device="cpu").to(device)


class StripCrossEntropy(torch.autograd.Function):
    """The sum over pixels of the weighted cross-entropy of resized logits.

    Arguments: logits (B, C, h, w), label (B, H, W), the mask (B, H, W) of valid pixels, class
    weights (C,) or None, align_corners. Results: the sum over valid pixels, the number of those
    whose label has the highest score, and the sum of their weights.

    There are no second derivatives; `create_graph=True` is an error.
    """

    @staticmethod
    def forward(ctx, logits, label, valid, class_weight, align_corners):
        with autocast_disabled(logits):
            x = logits.detach().to(full_precision(logits.dtype))
            x = x.permute(0, 2, 3, 1).contiguous()  # B, h, w, C
            gradient = torch.zeros_like(x) if ctx.needs_input_grad[0] else None  # B, h, w, C
            (batch, height, width), channels = label.shape, x.shape[3]
            rows = resize_map(x.shape[1], height, align_corners, like=x)
            columns = resize_map(x.shape[2], width, align_corners, like=x)
            step = min(strip_height(width, channels, x), height)
            buffers = x.new_empty(2, step, width, channels)
            sums = []
            for image, top in product(range(batch), range(0, height, step)):
                here = slice(top, min(top + step, height))
                scores, probabilities = buffers[:, : here.stop - top]  # rows, W, C
                resized_strip(scores.zero_(), top, x[image], rows, columns)
                sums.append(
                    _strip_cross_entropy(
                        scores.flatten(0, 1),
                        probabilities.flatten(0, 1),
                        label[image, here].flatten(),
                        valid[image, here].flatten(),
                        class_weight,
                    )
                )
                if gradient is not None:
                    _add_gradient(gradient[image], here, probabilities, rows, columns)
            loss, hits, weight = torch.stack(sums).sum(0)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(hits, weight)
        return loss, hits, weight

    @staticmethod
    def backward(ctx, factor, *_):
        if torch.is_grad_enabled():  # the result would be a constant, without an error
            raise RuntimeError(
                "create_graph=True: losses in strips have no second derivatives; use "
                "model.type=EncoderDecoder"
            )
        (gradient,) = ctx.saved_tensors
        result = (factor * gradient).permute(0, 3, 1, 2).to(ctx.dtype)
        return result, *(4 * (None,))


def _strip_cross_entropy(
    scores: Tensor,
    gradient: Tensor,
    label: Tensor,
    valid: Tensor,
    class_weight: Tensor | None,
) -> Tensor:
    """Return the sums of `StripCrossEntropy` for pixels (P, C), and write their gradient."""
    label = torch.where(valid, label, 0)[:, None]  # P, 1
    highest, predicted = scores.max(1, keepdim=True)  # P, 1
    probabilities = torch.softmax(scores, 1, out=gradient)  # P, C
    # log sum exp = highest - log(its probability), which is at least 1 / C: never log(0).
    log_highest = probabilities.gather(1, predicted).log()  # P, 1
    losses = (highest - scores.gather(1, label) - log_highest)[:, 0]  # P
    weight = valid.to(scores.dtype) if class_weight is None else class_weight[label[:, 0]]
    weight = weight.masked_fill(~valid, 0)  # not NaN x 0
    hits = (predicted == label)[:, 0] & valid
    loss = (losses * weight).masked_fill_(~valid, 0).sum()
    probabilities.scatter_(1, label, probabilities.gather(1, label) - 1)
    probabilities *= weight[:, None]
    return torch.stack((loss, hits.sum().to(loss), weight.sum()))


def _add_gradient(
    gradient: Tensor, here: slice, pixels: Tensor, rows: AxisMap, columns: AxisMap
) -> None:
    """Add R^T G C to `gradient` (h, w, C), for the rows `here` of G: `pixels` (rows, W, C)."""
    low = rows.needed(here.start, here.stop)
    with exact_products():
        wide = rows.matrix[here, low].T @ pixels.flatten(1)  # low rows, W C
        gradient[low] += columns.matrix.T @ wide.unflatten(1, pixels.shape[1:])  # low rows, w, C
