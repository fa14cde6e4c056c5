"""mmcv's `nms`, `soft_nms` and `roi_align` in plain PyTorch, where mmcv has no compiled operators.

mmdetection does not import without the extension module `mmcv._ext`. Importing this module puts a
stand-in in its place, only where it is missing and never by importing `mmseg_ext` alone:

    custom_imports = dict(imports=["mmseg_ext.detection.operators_in_pytorch", "mmseg_ext"])

The stand-in is for trying and testing: Mask R-CNN, Cascade R-CNN, RetinaNet and Mask2Former train
and predict with it on a CPU. Every other operator raises `NotImplementedError` with its name.

Follows mmcv 2.x, `ops/csrc/pytorch/cpu/{nms,roi_align}.cpp`. Deviations: `roi_align` sums in
another order and agrees to rounding (`nms` gives the same indices); it takes the mean of a
bin's points, and refuses the maximum.
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from mmseg_ext.errors import StackError
from mmseg_ext.layers.precision import full_precision
from mmseg_ext.upstream import COMPILED_OPERATORS

WITH_OPERATORS = (
    "install mmcv with its compiled operators: `mim install onedl-mmcv` takes a wheel that fits "
    "your torch and CUDA where there is one, MMCV_WITH_OPS=1 with pip builds one from the source"
)

# --- nms ----------------------------------------------------------------------------------------

_BLOCK = 256
"""Boxes that are compared with one another at once."""


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Greedy non-maximum suppression: a box falls to a better one that is kept and overlaps it.

    Args:
        boxes: (N, 4) as x1, y1, x2, y2.
        scores: (N,).
        iou_threshold: a box falls where the intersection over union is above it.
        offset: 1 where x2 and y2 belong to the box.

    Returns:
        The indices (K,) of the kept boxes, the best score first.
    """
    order = scores.sort(descending=True).indices
    boxes = boxes[order]
    keep = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    for start in range(0, len(boxes), _BLOCK):
        block = slice(start, start + _BLOCK)
        better = boxes[:start][keep[:start]]
        open_ = ~(_iou(better, boxes[block], offset) > iou_threshold).any(0)
        falls_to = (_iou(boxes[block], boxes[block], offset) > iou_threshold).triu(1)
        keep[block] = _greedy(open_, falls_to)
    return order[keep]


def _greedy(open_: Tensor, falls_to: Tensor) -> Tensor:
    """Which of the open boxes (N,) stay, where box j falls if a kept i has `falls_to[i, j]`.

    Boxes fall to earlier ones alone, so that only the greedy choice is its own successor; each
    round settles at least the first box that is not settled yet.
    """
    keep = open_
    while True:
        after = open_ & ~falls_to[keep].any(0)
        if torch.equal(after, keep):
            return keep
        keep = after


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    *,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Soft non-maximum suppression (arXiv 1704.04503): overlaps lower a score instead of the box.

    Args:
        boxes: (N, 4) as x1, y1, x2, y2.
        scores: (N,).
        dets: (N, 5); the first K rows become the kept boxes with their lowered scores.
        iou_threshold: from this overlap on, methods 0 and 1 lower a score.
        sigma: width of the Gaussian of method 2.
        min_score: a box whose score falls below it goes.
        method: 0 for greedy (a score becomes 0), 1 for linear, 2 for Gaussian.
        offset: 1 where x2 and y2 belong to the box.

    Returns:
        The indices (K,) of the kept boxes, in the order in which they were chosen.
    """
    scores = scores.clone()
    rest = torch.arange(len(boxes), device=boxes.device)
    kept = []
    while len(rest):
        best = scores[rest].argmax()
        chosen = rest[best]
        dets[len(kept)] = torch.cat((boxes[chosen], scores[chosen, None]))
        kept.append(chosen)
        rest = rest[rest != chosen]
        iou = _iou(boxes[chosen, None], boxes[rest], offset)[0]
        if method == 2:
            scores[rest] *= torch.exp(-(iou**2) / sigma)
        else:
            scores[rest] *= torch.where(iou >= iou_threshold, method * (1 - iou), 1.0)
        rest = rest[scores[rest] >= min_score]
    return torch.stack(kept) if kept else rest


def _iou(a: Tensor, b: Tensor, offset: int) -> Tensor:
    """Intersection over union of (N, 4) with (M, 4): (N, M)."""
    a, b = a[:, None], b[None]
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    inter = (sides + offset).clamp(min=0).prod(-1)  # (N, M)
    areas = [(box[..., 2:] - box[..., :2] + offset).prod(-1) for box in (a, b)]
    return inter / (areas[0] + areas[1] - inter)


# --- roi_align ----------------------------------------------------------------------------------


class _Samples(NamedTuple):
    """The S points at which the maps are read: those of the first RoI's first bin come first."""

    bin: Tensor
    """(S,) Bin of the point, RoIs x rows x columns in one count."""
    image: Tensor
    """(S,)"""
    y: Tensor
    """(S,) In cells of the map."""
    x: Tensor
    per_bin: Tensor
    """(RoIs * rows * columns,) Points in each bin."""


def _samples(
    rois: Tensor, rows: int, columns: int, scale: float, sampling_ratio: int, aligned: bool
) -> _Samples:
    """The points of all bins; without a `sampling_ratio` about one for each cell of the map."""
    corners = rois[:, 1:] * scale - (0.5 if aligned else 0.0)  # x1, y1, x2, y2
    start, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    if not aligned:
        size = size.clamp(min=1)
    elif (size < 0).any():
        raise ValueError("rois must not have x2 < x1 or y2 < y1 where aligned=True")
    bins = torch.tensor([columns, rows], device=rois.device)
    pitch = size / bins
    grid = torch.full_like(pitch, sampling_ratio) if sampling_ratio > 0 else pitch.ceil()
    grid = grid.long()  # (RoIs, 2): points along x and y in a bin
    per_bin = grid.prod(1).repeat_interleave(rows * columns)
    owner = torch.arange(len(per_bin), device=rois.device).repeat_interleave(per_bin)
    first = per_bin.cumsum(0) - per_bin
    nth = torch.arange(len(owner), device=rois.device) - first[owner]
    roi = owner // (rows * columns)
    grid = grid[roi]
    in_bin = torch.stack((nth % grid[:, 0], nth // grid[:, 0]), 1)  # x, y
    cell = torch.stack((owner % columns, owner // columns % rows), 1)
    point = start[roi] + cell * pitch[roi] + (in_bin + 0.5) * pitch[roi] / grid
    return _Samples(owner, rois[roi, 0].long(), point[:, 1], point[:, 0], per_bin)


def _cells(points: _Samples, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The four cells around each point and their weights in the mean of its bin, (S, 4) each.

    A cell counts image, row and column in one. Up to a cell outside the map the border's value
    holds; further out all weights are zero.
    """
    y, x = points.y, points.x
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.long(), x.long()
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    down, along = y - top, x - left
    cells = [row * width + column for row in (top, bottom) for column in (left, right)]
    weights = [v * h for v in (1 - down, down) for h in (1 - along, along)]
    share = inside.to(y) / points.per_bin[points.bin]  # (S,)
    cells = torch.stack(cells, -1) + points.image[:, None] * (height * width)
    return cells, torch.stack(weights, -1) * share[:, None]


def _weighted_sums(rows: Tensor, index: Tensor, weight: Tensor, length: Tensor) -> Tensor:
    """For each bag, of `length` entries that follow one another, the sum of weight * rows[index].

    `rows` (R, C), `index` and `weight` (E,), `length` (bags,); gives (bags, C).
    """
    starts = length.cumsum(0) - length
    return embedding_bag(index, rows, starts, mode="sum", per_sample_weights=weight)


def _common(maps: Tensor, rois: Tensor) -> torch.dtype:
    """Where points and sums are computed: float32 or better, mixed dtypes in the better one."""
    return torch.promote_types(full_precision(maps.dtype), rois.dtype)


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the pooled (N, C, aligned_height, aligned_width) of `input` (B, C, H, W) to `output`.

    The dtypes of `input` and `rois` may differ; sums are taken in float32 or better.

    Args:
        rois: (N, 5) as image, x1, y1, x2, y2.
        argmax_y: not used, as `argmax_x`: they are for the maximum.
        spatial_scale: cells of the map per unit of the boxes.
        sampling_ratio: points along each side of a bin; 0 for one per begun cell.
        pool_mode: 1, the mean of a bin's points.
        aligned: shift the boxes by half a cell.

    Raises:
        NotImplementedError: for `pool_mode=0`, the maximum.
        ValueError: where `aligned` and a box has a negative side.
    """
    if pool_mode != 1:
        _refusing("roi_align with pool_mode='max'")()
    channels, height, width = input.shape[1:]
    dtype = _common(input, rois)
    rois = rois.to(dtype)
    points = _samples(rois, aligned_height, aligned_width, spatial_scale, sampling_ratio, aligned)
    cells, weights = _cells(points, height, width)
    table = input.to(dtype).permute(0, 2, 3, 1).reshape(-1, channels)  # (B H W, C)
    pooled = _weighted_sums(table, cells.flatten(), weights.flatten(), 4 * points.per_bin)
    shape = (len(rois), aligned_height, aligned_width, channels)
    output.copy_(pooled.view(shape).permute(0, 3, 1, 2))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of `roi_align_forward`'s input to `grad_input` (B, C, H, W)."""
    batch, channels, height, width = grad_input.shape
    dtype = _common(grad_output, rois)
    rois = rois.to(dtype)
    points = _samples(rois, aligned_height, aligned_width, spatial_scale, sampling_ratio, aligned)
    cells, weights = _cells(points, height, width)
    # The forward's bags are bins, these are cells; 32 bits sort faster.
    cells, order = cells.flatten().int().sort(stable=True)
    length = torch.bincount(cells, minlength=batch * height * width)
    table = grad_output.to(dtype).permute(0, 2, 3, 1).reshape(-1, channels)  # (bins, C)
    summed = _weighted_sums(table, points.bin[order // 4], weights.flatten()[order], length)
    grad_input += summed.view(batch, height, width, channels).permute(0, 3, 1, 2)


# --- the stand-in -------------------------------------------------------------------------------

_OPERATORS: dict[str, Callable] = {
    "nms": nms,
    "softnms": softnms,
    "roi_align_forward": roi_align_forward,
    "roi_align_backward": roi_align_backward,
}


class _StandIn(ModuleType):
    """Has every name of the extension: the operators above, else a function that refuses."""

    def __getattr__(self, name: str) -> Callable:
        if name.startswith("__"):
            raise AttributeError(name)
        return _OPERATORS.get(name) or _refusing(name)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*args, **kwargs) -> NoReturn:
        raise NotImplementedError(
            f"mmcv's operator {name!r} is not compiled here, and {__name__} has no stand-in for "
            f"it: {WITH_OPERATORS}"
        )

    return refuse


def _stand_in() -> None:
    if importlib.util.find_spec(COMPILED_OPERATORS) is not None:
        return
    if any(name.startswith("mmdet.models.") for name in sys.modules):
        raise StackError(
            f"mmdetection was imported without operators and keeps doing without: import "
            f"{__name__} before it and before mmsegmentation"
        )
    module = _StandIn(COMPILED_OPERATORS)
    module.__spec__ = ModuleSpec(COMPILED_OPERATORS, loader=None)
    sys.modules[COMPILED_OPERATORS] = module
    warnings.warn(
        f"{__name__} stands in for mmcv's compiled operators: good for trying and testing, too "
        f"slow for a real training. For that, {WITH_OPERATORS}",
        stacklevel=3,
    )
    if importlib.util.find_spec("mmdet") is not None:
        _give_mmseg_its_bases()


def _give_mmseg_its_bases() -> None:
    """mmsegmentation's heads that are mmdetection's, where it was imported before the stand-in.

    It gives them an empty base if mmdetection does not import, which it now does.
    """
    for name in ("Mask2FormerHead", "MaskFormerHead"):
        module = sys.modules.get(f"mmseg.models.decode_heads.{name.lower()[:-4]}_head")
        if module is None:
            continue
        from mmdet.models import dense_heads

        base = getattr(dense_heads, name)
        setattr(module, f"MMDET_{name}", base)
        getattr(module, name).__bases__ = (base,)


_stand_in()
