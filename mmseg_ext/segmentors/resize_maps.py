"""From a head's logits to an image's pixels: one matrix for the rows and one for the columns.

Between the logits L of a head and the scores at an image's pixels mmsegmentation resizes to the
network's input, pastes windows and divides by their count, cuts the padding off, flips, and
resizes to the original size. Every step is linear and works on rows and columns apart, so that all
of them together are R L C^T. The matrices are made by the very steps, applied to the identity of
one axis; the weights are torch's own.

No paper: the composition is ours. The steps are those of mmsegmentation 1.2.2's
`BaseDecodeHead.predict_by_feat`, `EncoderDecoder.slide_inference` and
`BaseSegmentor.postprocess_result`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mmseg_ext.layers.precision import full_precision

Span = tuple[int, int]  # start, stop


class AxisMap:
    """The linear map (size, low) from the low-resolution positions of one axis to its pixels.

    A row of it has two to four entries that are not zero, side by side: only the positions that
    some rows need enter a product.

    Args:
        matrix: (size, low), on the CPU.
        device: where the products are taken.
    """

    def __init__(self, matrix: Tensor, device: torch.device):
        self.matrix = matrix.to(device)
        self.size, self.low = matrix.shape
        used = (matrix != 0).int()
        any_used = used.amax(1).bool()
        self._first = torch.where(any_used, used.argmax(1), self.low).tolist()
        self._last = torch.where(any_used, self.low - used.flip(1).argmax(1), 0).tolist()
        pixels = any_used.nonzero()[:, 0].tolist()
        # Outside, the map is zero; it is so everywhere for a window that holds padding alone.
        self.reached = slice(pixels[0], pixels[-1] + 1) if pixels else slice(0, 0)

    def needed(self, start: int, stop: int) -> slice:
        """The low-resolution positions that the pixels start to stop are made of."""
        first, last = min(self._first[start:stop]), max(self._last[start:stop])
        return slice(first, max(first, last))


def resized(matrix: Tensor, size: int, align_corners: bool) -> Tensor:
    """mmseg's bilinear `resize` along the first axis: (n, low) to (size, low)."""
    shape = (size, matrix.shape[1])
    whole = matrix[None, None]
    return F.interpolate(whole, shape, mode="bilinear", align_corners=align_corners)[0, 0]


def resize_map(low: int, size: int, align_corners: bool, like: Tensor) -> AxisMap:
    """The map of a single resize, with the dtype and the device of `like`."""
    identity = torch.eye(low, dtype=full_precision(like.dtype))
    return AxisMap(resized(identity, size, align_corners), like.device)


def window_spans(size: int, crop: int, stride: int) -> list[Span]:
    """(start, stop) of mmseg's sliding windows on one axis; the last one is shifted to the end."""
    count = max(size - crop + stride - 1, 0) // stride + 1
    stops = [min(i * stride + crop, size) for i in range(count)]
    return [(max(stop - crop, 0), stop) for stop in stops]


@dataclass(frozen=True)
class AxisSteps:
    """What happens to one axis after the network's input.

    Args:
        size: length of the input.
        padding: positions of the input before and after the image.
        flip: the input holds the image flipped along this axis.
        original: length of the image.
    """

    size: int
    padding: tuple[int, int]
    flip: bool
    original: int


def view_map(
    low: int,
    window: Span,
    windows: Sequence[Span],
    steps: AxisSteps,
    align_corners: bool,
    like: Tensor,
) -> AxisMap:
    """All steps of one axis, from the `low` positions of a window's logits to the image's pixels.

    `window` is one of `windows`, which cover the input. The map has the dtype of `like`, float32
    at least, and its device.
    """
    start, stop = window
    identity = torch.eye(low, dtype=full_precision(like.dtype))
    matrix = resized(identity, stop - start, align_corners)  # window, low
    matrix = F.pad(matrix, (0, 0, start, steps.size - stop))  # size, low
    count = torch.zeros(steps.size, dtype=matrix.dtype)
    for first, last in windows:
        count[first:last] += 1
    matrix = matrix / count[:, None]
    matrix = matrix[steps.padding[0] : steps.size - steps.padding[1]]
    if steps.flip:
        matrix = matrix.flip(0)
    return AxisMap(resized(matrix, steps.original, align_corners), like.device)  # original, low
