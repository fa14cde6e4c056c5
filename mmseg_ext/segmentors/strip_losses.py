"""Full-resolution cross-entropy and accuracy in strips, with the gradient from the forward pass.

The result is mmsegmentation 1.2.2's `BaseDecodeHead.loss_by_feat` (bilinear resize, losses,
`accuracy`) with `CrossEntropyLoss`. Computing a loss over many classes and its gradient in chunks
of the scores follows Liger-Kernel (arXiv 2410.10989). Here the chunks are strips of rows of the
images, and the gradient is stored at the resolution of the head's logits.

Every operation is deterministic on CUDA, so `randomness.deterministic=True` needs no other path.

Deviation: with class weights and `avg_non_ignore=True` mmsegmentation raises an IndexError.
Here the average is over the weights of the pixels that are not ignored.
"""

from functools import lru_cache
from itertools import product
from typing import Any

import torch
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import CrossEntropyLoss, cross_entropy
from mmseg.structures import SegDataSample
from mmseg.utils import add_prefix
from torch import Tensor

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.submodules import does_more_than_forward
from mmseg_ext.segmentors.head_errors import losses_by_key
from mmseg_ext.segmentors.score_maps import AxisMap, axis_map, resized, strip_height
from mmseg_ext.torch_versions import exact_products
from mmseg_ext.upstream import label_maps

# Bytes of the strip of a loss on a GPU. Each strip starts about 20 kernels.
LOSS_STRIP_BYTES_GPU = 2**30

_EPS = torch.finfo(torch.float32).eps  # mmseg uses it in every dtype


def can_use_strips(head: BaseDecodeHead) -> bool:
    """Return whether the losses are reduced softmax cross-entropies of all pixels."""
    if head.sampler is not None or head.out_channels <= 1:
        return False
    losses = losses_by_key(head)
    if not losses or type(head.ignore_index) is not int:
        return False
    for loss in losses.values():  # of mmseg's class with its criterion: no subclass, no hooks
        if type(loss) is not CrossEntropyLoss or does_more_than_forward(loss):
            return False
        if loss.cls_criterion is not cross_entropy or loss.reduction not in ("mean", "sum"):
            return False
    return True


def strip_losses(
    head: BaseDecodeHead, maps: dict[str, Tensor], data_samples: list[SegDataSample]
) -> dict[str, Tensor]:
    """Return `BaseDecodeHead.loss_by_feat` of logits (B, C, h, w), if the head `can_use_strips`.

    `maps` are logits by the prefix of their losses, '' for none. The losses are float32, or float64
    for float64 logits.
    """
    # A compiler would unroll the loop over strips. As a decorator, `disable` would import
    # torch._dynamo with this module, which takes a second.
    uncompiled: Any = torch.compiler.disable(_strip_losses)
    return uncompiled(head, maps, data_samples)


def _strip_losses(
    head: BaseDecodeHead, maps: dict[str, Tensor], data_samples: list[SegDataSample]
) -> dict[str, Tensor]:
    label = label_maps(head, data_samples).squeeze(1)  # B, H, W
    label = label.transpose(0, 1).contiguous()  # H, B, W
    ignored = label == head.ignore_index  # H, B, W
    label = label.masked_fill(ignored, 0)
    count = (~ignored).sum()  # of valid pixels
    found = {}
    for prefix, logits in maps.items():
        # On a GPU a strip has rows of all images, which starts the fewest kernels. On a CPU it has
        # rows of one image, which stay in the cache.
        together = logits.device.type != "cpu"
        losses: dict[str, Tensor] = {}
        hits = torch.zeros(())
        for loss in losses_by_key(head).values():
            weight = _class_weights(loss, logits)
            if weight is not None:
                weight = weight[label].masked_fill_(ignored, 0)  # H, B, W
            total, hits = StripCrossEntropy.apply(
                logits, label, ignored, weight, head.align_corners, together
            )
            if loss.reduction == "mean":
                if weight is not None:
                    divisor = weight.sum()
                elif loss.avg_non_ignore:
                    divisor = count.to(total)
                else:
                    divisor = label.numel()
                total = total / (divisor + _EPS)
            total = loss.loss_weight * total
            name = loss.loss_name
            if name in losses:
                total = losses[name] + total
            losses[name] = total
        accuracy = (hits + _EPS) * (100 / (count + _EPS))
        losses["acc_seg"] = accuracy.float().reshape(1)
        if prefix:
            losses = add_prefix(losses, prefix)
        found |= losses
    return found


def _class_weights(loss: CrossEntropyLoss, logits: Tensor) -> Tensor | None:
    """Return the weights (C,) of the classes of logits (B, C, h, w), in float32 at least."""
    if loss.class_weight is None:
        return None
    # Of a list, a number or an array; exact values, which are also the key of the cache.
    numbers = torch.as_tensor(loss.class_weight, dtype=torch.float64).flatten().tolist()
    weights = _weights_on(logits.device, full_precision(logits.dtype), tuple(numbers))
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

    Arguments: logits (B, C, h, w), labels (H, B, W), the mask (H, B, W) of ignored pixels, the
    weights (H, B, W) of pixels or None, align_corners, together. Ignored pixels have label 0 and
    weight 0. Results: the sum, and the number of valid pixels whose label has the highest score.

    If the images are `together`, a strip has the same rows of all images, side by side; otherwise
    it has rows of one image. Labels, mask and weights have their rows first, so the part of a strip
    is a slice of them in both cases.

    There are no second derivatives; `create_graph=True` is an error.
    """

    @staticmethod
    def forward(ctx, logits, label, ignored, weight, align_corners, together):
        with autocast_disabled(logits), exact_products():
            x = logits.detach().to(full_precision(logits.dtype))
            x = x.permute(0, 2, 3, 1).contiguous()  # B, h, w, C
            gradient = None
            if ctx.needs_input_grad[0]:
                gradient = torch.zeros_like(x)  # B, h, w, C
            height, batch, width = label.shape
            channels = x.shape[3]
            rows = axis_map(resized, x.shape[1], height, align_corners, like=x)
            columns = axis_map(resized, x.shape[2], width, align_corners, like=x)

            side_by_side = batch if together else 1  # images of a strip
            budget = strip_height(side_by_side * width, channels, x, LOSS_STRIP_BYTES_GPU)
            step = min(budget, height)
            shape = (step, side_by_side, width, channels)
            if together:
                # Softmax in place halves the memory of large strips. On a CPU, whose strips are
                # small, it takes up to 1.7 times as long.
                scores_buffer = result_buffer = x.new_empty(shape)
            else:
                scores_buffer, result_buffer = x.new_empty(2, *shape)

            sums = []
            for first, top in product(range(0, batch, side_by_side), range(0, height, step)):
                images = slice(first, first + side_by_side)
                here = slice(top, min(top + step, height))  # the rows of the strip
                scores = scores_buffer[: here.stop - top]
                result = result_buffer[: here.stop - top]
                _resize(x[images], rows, columns, here, out=scores)  # rows, images, W, C
                pixel_weights = None
                if weight is not None:
                    pixel_weights = weight[here, images].flatten()
                one = _strip_cross_entropy(
                    scores.flatten(0, 2),
                    result.flatten(0, 2),
                    label[here, images].flatten(),
                    ignored[here, images].flatten(),
                    pixel_weights,
                )
                sums.append(one)
                if gradient is not None:
                    _add_gradient(gradient[images], rows, columns, here, result)
            loss, hits = torch.stack(sums).sum(0)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    def backward(ctx, factor, *_):
        if torch.is_grad_enabled():  # the result would be a constant, without an error
            raise RuntimeError(
                "create_graph=True: losses in strips have no second derivatives; use "
                "model.type=EncoderDecoder"
            )
        (gradient,) = ctx.saved_tensors
        result = (factor * gradient).permute(0, 3, 1, 2).to(ctx.dtype)
        return result, None, None, None, None, None


def _resize(x: Tensor, rows: AxisMap, columns: AxisMap, here: slice, out: Tensor) -> None:
    """Write the rows `here` of R L C^T to `out` (rows, B, W, C); x is L (B, h, w, C)."""
    low = rows.needed(here.start, here.stop)
    x = x[:, low].transpose(0, 1).flatten(0, 1)  # low rows B, w, C
    wide = torch.bmm(columns.matrix.expand(len(x), -1, -1), x)  # low rows B, W, C
    matrix = rows.matrix[here, low]  # rows, low rows
    torch.mm(matrix, wide.view(matrix.shape[1], -1), out=out.flatten(1))


def _strip_cross_entropy(
    scores: Tensor,
    out: Tensor,
    label: Tensor,
    ignored: Tensor,
    weight: Tensor | None,
) -> Tensor:
    """Return the results of `StripCrossEntropy` for scores (P, C), and write the gradient to `out`.

    `out` may be `scores`, which are overwritten.
    """
    # An ignored pixel has label 0. If this class has the highest possible score, the loss and the
    # gradient of the pixel are exactly 0, without a product of a mask and all scores.
    scores[:, 0].masked_fill_(ignored, torch.finfo(scores.dtype).max)
    label = label[:, None]  # P, 1
    highest, predicted = scores.max(1, keepdim=True)  # P, 1
    own = scores.gather(1, label)  # P, 1
    probabilities = torch.softmax(scores, 1, out=out)  # P, C
    # log sum exp = highest - log(its probability), which is at least 1 / C: never log(0).
    losses = highest - own - probabilities.gather(1, predicted).log()  # P, 1
    probabilities.scatter_(1, label, probabilities.gather(1, label) - 1)
    if weight is not None:
        losses *= weight[:, None]
        probabilities *= weight[:, None]
    hits = (predicted == label)[:, 0].masked_fill_(ignored, False)
    return torch.stack((losses.sum(), hits.sum()))


def _add_gradient(
    gradient: Tensor, rows: AxisMap, columns: AxisMap, here: slice, strip: Tensor
) -> None:
    """Add R^T G C to `gradient` (B, h, w, C), for the rows `here` of G: `strip` (rows, B, W, C)."""
    low = rows.needed(here.start, here.stop)
    wide = rows.matrix[here, low].T @ strip.flatten(1)  # low rows, B W C
    wide = wide.view(-1, *strip.shape[2:])  # low rows B, W, C
    narrow = torch.bmm(columns.matrix.T.expand(len(wide), -1, -1), wide)  # low rows B, w, C
    target = gradient[:, low].transpose(0, 1)  # low rows, B, w, C
    target += narrow.view(target.shape)
