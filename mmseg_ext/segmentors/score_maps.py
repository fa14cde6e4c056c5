"""The class scores R L C^T of an image, computed, merged and overwritten in strips of rows."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.segmentors.resize_maps import AxisMap, exact_products

# Bytes of one strip of scores; a call has up to three. On a CPU a strip stays in the cache
# (measured: docs/class_maps.md). On a GPU larger strips start fewer kernels (not measured).
STRIP_BYTES = 8 * 2**20
STRIP_BYTES_GPU = 64 * 2**20

Merge = Literal["probs", "logits"]


def strip_height(width: int, channels: int, like: Tensor) -> int:
    """Return the rows of a strip (rows, width, channels) within the budget, at least one."""
    budget = STRIP_BYTES if like.device.type == "cpu" else STRIP_BYTES_GPU
    return max(1, budget // (width * channels * like.element_size()))


def resized_strip(
    strip: Tensor, top: int, logits: Tensor, rows: AxisMap, columns: AxisMap
) -> Tensor:
    """Add the rows from `top` on of R L C^T to `strip` (rows, W, C); `logits` is L (h, w, C)."""
    bottom = top + len(strip)
    low, across = rows.needed(top, bottom), columns.reached
    if low.start == low.stop:  # the window is above or below the strip
        return strip
    with exact_products():
        wide = columns.matrix[across] @ logits[low]  # low rows, W, C
        target = strip[:, across].view(len(strip), -1)  # rows, W C
        target.addmm_(rows.matrix[top:bottom, low], wide.flatten(1))
    return strip


class ScoreMap:
    """Scores (H, W, C) of one view of an image: the sum of R L C^T over its windows.

    Scores are computed when `add_to` asks for them. The logits are stored in float32 or float64,
    without their graph, and with the classes last, where softmax and argmax are fastest.
    """

    def __init__(self):
        self._terms: list[tuple[Tensor, AxisMap, AxisMap]] = []

    def add(self, logits: Tensor, rows: AxisMap, columns: AxisMap) -> None:
        """Add a window: its logits (C, h, w), and the maps (H, h) and (W, w)."""
        logits = logits.detach().to(full_precision(logits.dtype))
        # Minus infinity, the bias of a class that must never win, times 0 would be NaN.
        logits = logits.clamp(min=torch.finfo(logits.dtype).min / 2**10)
        self._terms.append((logits.permute(1, 2, 0).contiguous(), rows, columns))  # h, w, C

    @property
    def shape(self) -> tuple[int, int, int]:
        logits, rows, columns = self._terms[0]
        return rows.size, columns.size, logits.shape[2]

    def new_empty(self, *shape: int) -> Tensor:
        """Return an empty tensor with the dtype and the device of the logits."""
        return self._terms[0][0].new_empty(shape)

    def add_to(self, strip: Tensor, top: int) -> None:
        """Add the scores of the rows from `top` on to `strip` (rows, W, C)."""
        with autocast_disabled(strip):
            for term in self._terms:
                resized_strip(strip, top, *term)


def merged_strips(views: Sequence[ScoreMap], merge: Merge) -> Iterator[tuple[int, Tensor]]:
    """Yield (top, scores (rows, W, C)) of the merged views, from top to bottom.

    'logits' sums the views' scores, 'probs' averages their probabilities (softmax, or sigmoid of a
    single channel). Each strip overwrites the one before.
    """
    height, width, channels = views[0].shape
    total = views[0].new_empty(0)
    rows = min(strip_height(width, channels, total), height)
    total = total.new_empty(rows, width, channels)
    buffers = () if merge == "logits" else (torch.empty_like(total), torch.empty_like(total))
    for top in range(0, height, rows):
        strip, *summands = (buffer[: height - top] for buffer in (total, *buffers))
        strip.zero_()
        for view in views:
            if merge == "logits":
                view.add_to(strip, top)
            else:
                strip += _probabilities(view, top, *summands)
        if merge == "probs":
            strip /= len(views)
        yield top, strip


def _probabilities(view: ScoreMap, top: int, scores: Tensor, out: Tensor) -> Tensor:
    view.add_to(scores.zero_(), top)
    if scores.shape[2] == 1:
        return torch.sigmoid(scores, out=out)
    return torch.softmax(scores, dim=2, out=out)


def merged_prediction(
    views: Sequence[ScoreMap], merge: Merge, threshold: float | None, keep_scores: bool
) -> dict[str, Tensor]:
    """Return `pred_sem_seg` (1, H, W), and with `keep_scores` also `seg_logits` (C, H, W).

    `threshold` applies to the mean probability of a single channel, as in mmseg's heads.
    """
    height, width, channels = views[0].shape
    kept = views[0].new_empty(channels, height, width) if keep_scores else None
    labels = views[0].new_empty(1, height, width)
    if channels > 1:
        labels = labels.long()
    for top, scores in merged_strips(views, merge):
        rows = slice(top, top + len(scores))
        if channels > 1:
            torch.argmax(scores, dim=2, out=labels[0, rows])
        else:
            labels[0, rows] = scores[:, :, 0] > threshold
        if kept is not None:
            kept[:, rows] = scores.permute(2, 0, 1)
    return {"pred_sem_seg": labels} | ({} if kept is None else {"seg_logits": kept})
