"""Full-resolution cross-entropy and accuracy by strips, with the gradient formed in the forward.

What is computed is mmsegmentation 1.2.2's: `BaseDecodeHead.loss_by_feat` (bilinear resize, losses,
`accuracy`) with its `CrossEntropyLoss`. That a loss over many classes can form its gradient while
it has a chunk of the scores is Liger-Kernel's idea (arXiv:2410.10989); here the chunks are strips
of an image's rows, and the gradient is kept at the resolution of the head's logits.

Deviation: with class weights and `avg_non_ignore=True`, where mmsegmentation raises an IndexError
as soon as a pixel is ignored, the average is over the weights of the other pixels.
"""

import torch
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import CrossEntropyLoss
from mmseg.structures import SegDataSample
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.segmentors.resize_maps import AxisMap, resize_map
from mmseg_ext.segmentors.score_maps import resized_strip, strip_height

_EPS = torch.finfo(torch.float32).eps  # mmseg's, in every dtype


def takes_strips(head: BaseDecodeHead) -> bool:
    """The head's losses are softmax cross-entropies with a mean or a sum, over all pixels."""
    return head.sampler is None and head.out_channels > 1 and all(map(_known, _losses(head)))


def _losses(head: BaseDecodeHead) -> list[nn.Module]:
    several = isinstance(head.loss_decode, nn.ModuleList)
    return list(head.loss_decode) if several else [head.loss_decode]


def _known(loss: nn.Module) -> bool:
    return (
        type(loss) is CrossEntropyLoss
        and not (loss.use_sigmoid or loss.use_mask)
        and loss.reduction in ("mean", "sum")
    )


@torch.compiler.disable
def strip_losses(
    head: BaseDecodeHead, logits: Tensor, data_samples: list[SegDataSample]
) -> dict[str, Tensor]:
    """`BaseDecodeHead.loss_by_feat` for a head that `takes_strips`.

    `logits` are (B, C, h, w), of any float dtype; the losses are in float32 or better.
    """
    label = head._stack_batch_gt(data_samples).squeeze(1)  # B, H, W
    valid = label != head.ignore_index  # B, H, W
    losses: dict[str, Tensor] = {}
    hits = None
    for loss in _losses(head):
        class_weight = None
        if loss.class_weight is not None:
            class_weight = torch.tensor(
                loss.class_weight, dtype=full_precision(logits.dtype), device=logits.device
            )
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


class StripCrossEntropy(torch.autograd.Function):
    """Sum over pixels of the weighted cross-entropy of resized logits.

    Arguments: logits (B, C, h, w), label (B, H, W), valid (B, H, W) bool, class weights (C,) or
    None, align_corners. Returns the sum, the number of valid pixels whose label has the highest
    score, and the sum of the valid pixels' weights.
    """

    @staticmethod
    def forward(ctx, logits, label, valid, class_weight, align_corners):
        batch, channels, *low = logits.shape
        height, width = label.shape[1:]
        with autocast_disabled(logits):
            x = logits.detach().to(full_precision(logits.dtype)).permute(0, 2, 3, 1).contiguous()
            rows = resize_map(low[0], height, align_corners, x)
            columns = resize_map(low[1], width, align_corners, x)
            gradient = torch.zeros_like(x) if ctx.needs_input_grad[0] else None  # B, h, w, C
            strip = min(strip_height(width, channels, x.dtype), height)
            buffers = x.new_empty(2, strip, width, channels)
            sums = []
            for image in range(batch):
                for top in range(0, height, strip):
                    here = slice(top, min(top + strip, height))
                    scores, probabilities = buffers[:, : here.stop - top]
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
    @once_differentiable
    def backward(ctx, factor, *_):
        (gradient,) = ctx.saved_tensors
        return (factor * gradient).permute(0, 3, 1, 2).to(ctx.dtype), None, None, None, None


def _strip_cross_entropy(
    scores: Tensor, gradient: Tensor, label: Tensor, valid: Tensor, class_weight: Tensor | None
) -> Tensor:
    """The three sums of `StripCrossEntropy` for pixels (P, C), whose gradient goes to `gradient`.

    The logarithm of the sum of exponentials is the highest score less the logarithm of its
    probability, which is at least 1 / C.
    """
    label = torch.where(valid, label, 0)[:, None]  # P, 1
    highest, predicted = scores.max(1, keepdim=True)  # P, 1
    probabilities = torch.softmax(scores, 1, out=gradient)  # P, C
    log_highest = probabilities.gather(1, predicted).log()  # P, 1
    losses = (highest - scores.gather(1, label) - log_highest)[:, 0]  # P
    weight = valid.to(scores.dtype) if class_weight is None else class_weight[label[:, 0]] * valid
    hits = (predicted == label)[:, 0] & valid
    loss = (losses * weight).masked_fill_(~valid, 0).sum()
    probabilities.scatter_(1, label, probabilities.gather(1, label) - 1)
    probabilities *= weight[:, None]
    return torch.stack((loss, hits.sum().to(loss), weight.sum()))


def _add_gradient(
    gradient: Tensor, here: slice, pixels: Tensor, rows: AxisMap, columns: AxisMap
) -> None:
    """Add R^T G C of the rows `here` of G, `pixels` (rows, W, C), to `gradient` (h, w, C)."""
    low = rows.needed(here.start, here.stop)
    wide = rows.matrix[here, low].T @ pixels.flatten(1)  # low rows, W C
    gradient[low] += columns.matrix.T @ wide.unflatten(1, pixels.shape[1:])  # low rows, w, C
