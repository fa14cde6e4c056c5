"""Farthest points and nearest neighbors of point clouds (B, N, 3), on any device.

Paper: PointNet++, arXiv:1706.02413, section 3.2, as used by PCT. The published code uses compiled
kernels for GPUs. As there, sampling starts at the first point of the cloud and is deterministic.
"""

import torch
from torch import Tensor


def farthest_points(points: Tensor, count: int) -> Tensor:
    """Return indices (B, count): the first point, then always the point farthest from all others.

    Of equally far points, the first is chosen. Each step processes all clouds at once.
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
    """Return indices (B, M, count), unsorted, of the points nearest to queries (B, M, 3)."""
    # Exact differences instead of the product form, which loses close neighbours to rounding.
    distance = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.topk(count, dim=2, largest=False, sorted=False).indices


def take(values: Tensor, indices: Tensor) -> Tensor:
    """Gather values (B, N, C) at indices (B, ...) to (B, ..., C)."""
    batch = torch.arange(len(values), device=values.device)
    return values[batch.view(-1, *[1] * (indices.ndim - 1)), indices]
