"""mmcv's `nms` and `roi_align` in plain PyTorch, for mmcv without compiled operators.

mmdetection does not import without the extension module `mmcv._ext`. Importing this module replaces
the extension if it is missing. `import mmseg_ext` never does:

    custom_imports = dict(imports=["mmseg_ext.detection.operators_in_pytorch", "mmseg_ext"])

The replacement is for tests and trials: Mask R-CNN, Cascade R-CNN, RetinaNet and Mask2Former train
and predict with it on a CPU. All other operators raise `NotImplementedError` with their name.

Follows mmcv 2.x, `ops/csrc/pytorch/cpu/{nms,roi_align}.cpp`. Deviations: `nms` returns the same
indices; `roi_align` sums in another order, agrees to rounding, and refuses max pooling.
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
    "install mmcv with its compiled operators: `mim install onedl-mmcv` installs a wheel if there "
    "is one for your torch and CUDA, and pip with MMCV_WITH_OPS=1 builds it from source"
)

# --- nms ----------------------------------------------------------------------------------------

_BLOCK = 256  # boxes that are compared with each other at once


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Return the boxes that greedy non-maximum suppression keeps.

    A box is removed if a kept box with a better score overlaps it.

    Args:
        boxes: (N, 4) as x1, y1, x2, y2.
        scores: (N,).
        iou_threshold: boxes overlap if their intersection over union is above it.
        offset: 1 if x2 and y2 belong to the box.

    Returns:
        Indices (K,) of the kept boxes, the best score first.
    """
    order = scores.sort(descending=True).indices
    boxes = boxes[order]
    keep = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    for start in range(0, len(boxes), _BLOCK):
        block = slice(start, start + _BLOCK)
        better = boxes[:start][keep[:start]]
        candidates = ~(_iou(better, boxes[block], offset) > iou_threshold).any(0)
        overlaps = (_iou(boxes[block], boxes[block], offset) > iou_threshold).triu(1)
        keep[block] = _greedy(candidates, overlaps)
    return order[keep]


def _greedy(candidates: Tensor, overlaps: Tensor) -> Tensor:
    """Return which candidates (N,) stay, if a kept box i removes each box j with overlaps[i, j].

    Only earlier boxes remove a box, so the greedy choice is the only fixed point. Each round
    settles at least one more box.
    """
    keep = candidates
    while True:
        after = candidates & ~overlaps[keep].any(0)
        if torch.equal(after, keep):
            return keep
        keep = after


def _iou(a: Tensor, b: Tensor, offset: int) -> Tensor:
    """Return the intersection over union (N, M) of boxes (N, 4) and (M, 4)."""
    a, b = a[:, None], b[None]
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    inter = (sides + offset).clamp(min=0).prod(-1)  # (N, M)
    return inter / (_area(a, offset) + _area(b, offset) - inter)


def _area(boxes: Tensor, offset: int) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2] + offset).prod(-1)


# --- roi_align ----------------------------------------------------------------------------------


class _Samples(NamedTuple):
    """The S points at which the maps are read, ordered by RoI and bin."""

    bin: Tensor  # (S,), RoIs x rows x columns as one index
    image: Tensor  # (S,)
    y: Tensor  # (S,), in cells of the map
    x: Tensor
    per_bin: Tensor  # (RoIs * rows * columns,), points in each bin


def _samples(
    rois: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> _Samples:
    """Return the points of all bins; without a `sampling_ratio` about one per cell of the map."""
    rows, columns = aligned_height, aligned_width
    shift = 0.5 if aligned else 0.0
    corners = rois[:, 1:] * spatial_scale - shift  # x1, y1, x2, y2
    start, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    if not aligned:
        size = size.clamp(min=1)
    elif (size < 0).any():
        raise ValueError("rois: x2 < x1 or y2 < y1 with aligned=True; sort the corners")
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
    """Return the four cells around each point and their weights in its bin's mean, (S, 4) each.

    A cell is one index for image, row and column. Points up to one cell outside the map have the
    value of the border; farther points have the weight zero.
    """
    y, x = points.y, points.x
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.long(), x.long()
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    down, along = y - top, x - left
    cells, weights = [], []
    for row, of_row in ((top, 1 - down), (bottom, down)):
        for column, of_column in ((left, 1 - along), (right, along)):
            cells.append(row * width + column)
            weights.append(of_row * of_column)
    share = inside.to(y) / points.per_bin[points.bin]  # (S,)
    indices = torch.stack(cells, -1) + points.image[:, None] * (height * width)
    return indices, torch.stack(weights, -1) * share[:, None]


def _pool(maps: Tensor, rois: Tensor, *, pool_mode: int, **grid) -> Tensor:
    """Return the means of the bins (N, C, rows, columns) of maps (B, C, H, W), at least float32.

    Raises:
        NotImplementedError: for `pool_mode=0`, max pooling.
        ValueError: for a box with a negative side, if `aligned`.
    """
    if pool_mode != 1:
        _refusing("roi_align with pool_mode='max'")()
    channels, height, width = maps.shape[1:]
    dtype = torch.promote_types(full_precision(maps.dtype), rois.dtype)
    points = _samples(rois.to(dtype), **grid)
    cells, weights = _cells(points, height, width)
    table = maps.to(dtype).permute(0, 2, 3, 1).reshape(-1, channels)  # (B H W, C)
    starts = 4 * (points.per_bin.cumsum(0) - points.per_bin)
    pooled = embedding_bag(
        cells.flatten(), table, starts, mode="sum", per_sample_weights=weights.flatten()
    )  # (N rows columns, C)
    shape = (len(rois), grid["aligned_height"], grid["aligned_width"], channels)
    return pooled.view(shape).permute(0, 3, 1, 2)


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, **grid
) -> None:
    """Write the pooled (N, C, aligned_height, aligned_width) of `input` (B, C, H, W) to `output`.

    Args:
        rois: (N, 5) as image, x1, y1, x2, y2, in any float type.
        argmax_y: not used, as `argmax_x`: they are for max pooling.
        grid: aligned_height and aligned_width, the bins; spatial_scale, cells of the map per unit
            of the boxes; sampling_ratio, points along each side of a bin, 0 for about one per
            cell; aligned, whether boxes are shifted by half a cell; pool_mode, 1 for the mean.
    """
    output.copy_(_pool(input, rois, **grid))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    **grid,
) -> None:
    """Add the gradient of `roi_align_forward`'s input to `grad_input` (B, C, H, W)."""
    with torch.enable_grad():
        maps = torch.zeros_like(grad_input, requires_grad=True)  # it is linear, so any maps do
        pooled = _pool(maps, rois, **grid)
    grad_input += torch.autograd.grad(pooled, maps, grad_output.to(pooled.dtype))[0]


# --- the extension module -----------------------------------------------------------------------

_OPERATORS = {
    "nms": nms,
    "roi_align_forward": roi_align_forward,
    "roi_align_backward": roi_align_backward,
}


class _Extension(ModuleType):
    """A module with every name of the extension; other operators than the above raise an error."""

    def __getattr__(self, name: str) -> Callable:
        if name.startswith("__"):
            raise AttributeError(name)
        return _OPERATORS.get(name) or _refusing(name)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*args, **kwargs) -> NoReturn:
        raise NotImplementedError(
            f"mmcv's operator {name!r} is not compiled, and {__name__} does not replace it; "
            f"{WITH_OPERATORS}"
        )

    return refuse


def _replace_extension() -> None:
    if importlib.util.find_spec(COMPILED_OPERATORS) is not None:
        return
    if any(name.startswith("mmdet.models.") for name in sys.modules):
        raise StackError(
            f"mmdetection was imported without mmcv's operators and keeps doing without; import "
            f"{__name__} before mmdetection and mmsegmentation"
        )
    module = _Extension(COMPILED_OPERATORS)
    module.__spec__ = ModuleSpec(COMPILED_OPERATORS, loader=None)
    sys.modules[COMPILED_OPERATORS] = module
    warnings.warn(
        f"{__name__} replaces mmcv's compiled operators, which is too slow for real trainings; "
        f"{WITH_OPERATORS}",
        stacklevel=3,
    )
    if importlib.util.find_spec("mmdet") is not None:
        _repair_bases()


def _repair_bases() -> None:
    """Give mmsegmentation's Mask2Former heads their bases of mmdetection.

    If mmsegmentation was imported first, mmdetection could not be imported, and the heads got an
    empty base. They are registered already and other modules refer to them, so importing their
    modules again would create second classes; the base is replaced instead.
    """
    if "mmseg.models.decode_heads" not in sys.modules:
        return
    from mmdet.models import dense_heads
    from mmseg.models.decode_heads import mask2former_head, maskformer_head

    for module, name in (
        (mask2former_head, "Mask2FormerHead"),
        (maskformer_head, "MaskFormerHead"),
    ):
        base = getattr(dense_heads, name)
        setattr(module, f"MMDET_{name}", base)  # their constructors look at it
        getattr(module, name).__bases__ = (base,)


_replace_extension()
