"""The class scores R L C^T of an image: one matrix per axis, and products in strips of rows.

Between the logits L of a head and the scores at an image's pixels, mmsegmentation resizes to the
network's input, pastes windows and divides by their count, removes the padding, flips, and resizes
to the original size. Every step is linear and treats rows and columns separately, so all of them
together are R L C^T. Each matrix is the result of the same steps on the identity of one axis. The
weights are therefore torch's own.

No paper: the composition is ours. The steps are taken from mmsegmentation 1.2.2's
`BaseDecodeHead.predict_by_feat`, `EncoderDecoder.slide_inference` and
`BaseSegmentor.postprocess_result`.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
from mmengine.structures import PixelData
from torch import Tensor
from torch.nn import functional as F

from mmseg_ext.images.seen import Span
from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.torch_versions import exact_products

# Twelve views of an image have 24 maps, and each head of a training has two.
_CACHED = 64
# Bytes of one strip of scores; a prediction has up to three. On a CPU a strip stays in the cache
# (measured: docs/class_maps.md). On a GPU larger strips start fewer kernels (docs/gpu.md).
STRIP_BYTES = 8 * 2**20
STRIP_BYTES_GPU = 256 * 2**20

Merge = Literal["probs", "logits"]


def labels_of(scores: Tensor, threshold: float | None, dim: int) -> Tensor:
    """Return the labels for the merged scores of an image, as mmsegmentation's `pred_sem_seg`.

    `dim` has the classes, and is removed. The scores of a single channel are probabilities, and a
    pixel has class 1 if its own is above `threshold`, the decode head's.
    """
    if scores.shape[dim] > 1:
        return scores.argmax(dim)
    return (scores > threshold).to(scores).squeeze(dim)


class AxisMap:
    """The linear map (size, low) from the low-resolution positions of one axis to its pixels.

    A row has two to four adjacent entries that are not zero. Products therefore use only the
    positions that some rows need.
    """

    def __init__(self, matrix: Tensor):
        self.matrix = matrix
        self.size, self.low = matrix.shape
        used = (matrix != 0).int()
        any_used = used.amax(1).bool()
        self._first = torch.where(any_used, used.argmax(1), self.low).tolist()
        self._last = torch.where(any_used, self.low - used.flip(1).argmax(1), 0).tolist()
        pixels = any_used.nonzero()[:, 0].tolist()
        # The rows outside are zero. A window that covers only padding has no others.
        self.reached = slice(0, 0)
        if pixels:
            self.reached = slice(pixels[0], pixels[-1] + 1)

    def needed(self, start: int, stop: int) -> slice:
        """Return the low-resolution positions that contribute to the pixels start to stop."""
        first, last = min(self._first[start:stop]), max(self._last[start:stop])
        return slice(first, max(first, last))


@lru_cache(_CACHED, typed=True)  # `interpolate` refuses align_corners=1, which equals True
def _cached(
    build: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, *args
) -> AxisMap:
    # Autograd would refuse a tensor of inference mode later.
    with torch.inference_mode(False), torch.no_grad():
        axis_map = AxisMap(build(*args, dtype))
        axis_map.matrix = axis_map.matrix.to(device)
    return axis_map


def axis_map(build: Callable[..., Tensor], *args, like: Tensor) -> AxisMap:
    """Return the map of `resized` or `viewed` for the dtype and the device of `like`.

    Building a matrix copies it to the device, which would synchronize a GPU in every iteration. So
    the maps are cached.
    """
    dtype = full_precision(like.dtype)
    if not like.is_meta:
        return _cached(build, dtype, like.device, *args)
    empty = copy.copy(_cached(build, dtype, torch.device("cpu"), *args))
    empty.matrix = like.new_empty(empty.matrix.shape, dtype=dtype)
    return empty


def _resize(matrix: Tensor, size: int, align_corners: bool) -> Tensor:
    """Apply mmseg's bilinear `resize` to the first axis: (n, low) to (size, low)."""
    image = matrix[None, None]  # 1, 1, n, low
    shape = (size, matrix.shape[1])
    return F.interpolate(image, shape, mode="bilinear", align_corners=align_corners)[0, 0]


def resized(low: int, size: int, align_corners: bool, dtype: torch.dtype) -> Tensor:
    """Return the matrix (size, low) of a single resize."""
    return _resize(torch.eye(low, dtype=dtype, device="cpu"), size, align_corners)


@dataclass(frozen=True)
class AxisSteps:
    """The steps on one axis after the network's input.

    Args:
        size: length of the input.
        padding: positions of the input before and after the image.
        flip: whether the input is flipped along this axis.
        original: length of the image.
    """

    size: int
    padding: tuple[int, int]
    flip: bool
    original: int


def viewed(
    low: int,
    window: Span,
    windows: tuple[Span, ...],
    steps: AxisSteps,
    align_corners: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Return all steps of one axis, from the `low` positions of a window's logits to the pixels.

    `window` is one of `windows`, which cover the input.
    """
    start, stop = window
    matrix = resized(low, stop - start, align_corners, dtype)  # window, low
    matrix = F.pad(matrix, (0, 0, start, steps.size - stop))  # size, low
    count = torch.zeros(steps.size, dtype=dtype, device="cpu")
    for first, last in windows:
        count[first:last] += 1
    matrix = matrix / count[:, None]
    matrix = matrix[steps.padding[0] : steps.size - steps.padding[1]]
    if steps.flip:
        matrix = matrix.flip(0)
    return _resize(matrix, steps.original, align_corners)  # original, low


def strip_height(width: int, channels: int, like: Tensor, gpu_bytes: int) -> int:
    """Return the rows of a strip (rows, width, channels) within the budget, at least one.

    The budget is `STRIP_BYTES` on a CPU, and `gpu_bytes` on a GPU.
    """
    budget = STRIP_BYTES if like.device.type == "cpu" else gpu_bytes
    return max(1, budget // (width * channels * like.element_size()))


@dataclass
class ScoreMap:
    """Scores (H, W, C) of one view of an image: the sum of R L C^T over its windows.

    Scores are computed when `add_to` asks for them. The logits are stored in float32 or float64,
    without their graph, and with the classes last, where softmax and argmax are fastest.
    """

    _terms: list[tuple[Tensor, AxisMap, AxisMap]] = field(default_factory=list)

    def add(self, logits: Tensor, rows: AxisMap, columns: AxisMap) -> None:
        """Add a window: its logits (C, h, w), and the maps (H, h) and (W, w)."""
        logits = logits.detach().to(full_precision(logits.dtype))
        # Minus infinity, the bias of a class that must never win, times 0 would be NaN.
        logits = logits.clamp(min=torch.finfo(logits.dtype).min / 2**10)
        self._terms.append((logits.permute(1, 2, 0).contiguous(), rows, columns))  # h, w, C

    def reorder(self, classes: list[int]) -> None:
        """Take the scores of these classes for 0, 1, ..."""
        if classes != list(range(len(classes))):
            self._terms = [
                (logits[..., classes], rows, columns) for logits, rows, columns in self._terms
            ]

    @property
    def shape(self) -> tuple[int, int, int]:
        logits, rows, columns = self._terms[0]
        return rows.size, columns.size, logits.shape[2]

    def new_empty(self, *shape: int) -> Tensor:
        """Return an empty tensor with the dtype and the device of the logits."""
        return self._terms[0][0].new_empty(shape)

    def add_to(self, strip: Tensor, top: int) -> None:
        """Add the scores of the rows from `top` on to `strip` (rows, W, C)."""
        bottom = top + len(strip)
        with autocast_disabled(strip), exact_products():  # as in mmseg's resize
            for logits, rows, columns in self._terms:
                low, across = rows.needed(top, bottom), columns.reached
                if low.start == low.stop:  # the window is above or below the strip
                    continue
                wide = columns.matrix[across] @ logits[low]  # low rows, W, C
                target = strip[:, across].view(len(strip), -1)  # rows, W C
                target.addmm_(rows.matrix[top:bottom, low], wide.flatten(1))


class DeferredLogits(PixelData):
    """`seg_logits` whose `data` (C, H, W) is computed each time it is read.

    Args:
        views: the scores of the views of an image.
        merge: 'logits' sums the views' scores, 'probs' averages their probabilities (softmax, or
            sigmoid of a single channel).
    """

    views: list[ScoreMap]
    merge: Merge

    def __init__(self, views: list[ScoreMap], merge: Merge):
        super().__init__()
        vars(self).update(views=views, merge=merge)  # PixelData accepts only tensors

    @property
    def data(self) -> Tensor:
        return self.labels_and_scores(0, keep_scores=True)["seg_logits"]

    def strips(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (top, merged scores (rows, W, C)), from top to bottom.

        Each strip overwrites the one before.
        """
        like = self.views[0]
        height, width, channels = like.shape
        rows = min(strip_height(width, channels, like.new_empty(0), STRIP_BYTES_GPU), height)
        total = like.new_empty(rows, width, channels)
        buffers = []  # of the scores and the probabilities of one view
        if self.merge == "probs":
            buffers = [torch.empty_like(total), torch.empty_like(total)]
        for top in range(0, height, rows):
            strip = total[: height - top].zero_()
            for view in self.views:
                if self.merge == "logits":
                    view.add_to(strip, top)
                    continue
                scores, probabilities = (buffer[: len(strip)] for buffer in buffers)
                view.add_to(scores.zero_(), top)
                if channels == 1:
                    strip += torch.sigmoid(scores, out=probabilities)
                else:
                    strip += torch.softmax(scores, dim=2, out=probabilities)
            if self.merge == "probs":
                strip /= len(self.views)
            yield top, strip

    def labels_and_scores(self, threshold: float | None, keep_scores: bool) -> dict[str, Tensor]:
        """Return `pred_sem_seg` (1, H, W), and with `keep_scores` also `seg_logits` (C, H, W)."""
        like = self.views[0]
        height, width, channels = like.shape
        found = {"pred_sem_seg": like.new_empty(1, height, width)}
        if channels > 1:
            found["pred_sem_seg"] = found["pred_sem_seg"].long()
        if keep_scores:
            found["seg_logits"] = like.new_empty(channels, height, width)
        for top, scores in self.strips():
            rows = slice(top, top + len(scores))
            found["pred_sem_seg"][0, rows] = labels_of(scores, threshold, 2)
            if keep_scores:
                found["seg_logits"][:, rows] = scores.permute(2, 0, 1)
        return found
