"""Farthest points and nearest neighbours of point clouds (B, N, 3), on any device.

Paper: Qi et al., "PointNet++", arXiv:1706.02413, section 3.2; both are as PCT uses them. The
published code samples with compiled kernels that run on a GPU alone. Like those, the first point
sampled is the first point of the cloud, so the result is the same every time.
"""

import torch
from torch import Tensor


def farthest_points(points: Tensor, count: int) -> Tensor:
    """Indices (B, count): the first point, then always the point farthest from those chosen.

    Equally far points are taken in their order. The loop is over the points chosen; a step is
    a few operations on all clouds at once.
    """
    batch = torch.arange(len(points), device=points.device)
    chosen = torch.zeros(len(points), count, dtype=torch.long, device=points.device)
    distance = points.new_full(points.shape[:2], torch.inf)  # B, N; squared, to the nearest chosen
    last = chosen[:, 0]
    for i in range(1, count):
        step = (points - points[batch, last][:, None]).square().sum(2)  # B, N
        distance = torch.minimum(distance, step)
        last = distance.argmax(1)
        chosen[:, i] = last
    return chosen


def nearest_points(points: Tensor, queries: Tensor, count: int) -> Tensor:
    """Indices (B, M, count) of the points (B, N, 3) nearest to queries (B, M, 3), in any order."""
    # Exact differences instead of the product form, which loses close neighbours to rounding.
    distance = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.topk(count, dim=2, largest=False, sorted=False).indices


def take(values: Tensor, indices: Tensor) -> Tensor:
    """values (B, N, C) at indices (B, ...): (B, ..., C)."""
    batch = torch.arange(len(values), device=values.device)
    return values[batch.view(-1, *[1] * (indices.ndim - 1)), indices]
