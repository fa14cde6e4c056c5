"""Sampling and grouping against brute force, and clouds that cannot be sampled."""

import pytest
import torch

from projects.eat.sampling import farthest_points, nearest_points, require_clouds, take


def test_farthest_points_are_those_of_brute_force():
    points = torch.randn(3, 40, 3, dtype=torch.float64)
    for cloud, found in zip(points, farthest_points(points, 17), strict=True):
        chosen = [0]
        while len(chosen) < 17:
            to_chosen = [min(float((p - cloud[i]).norm()) for i in chosen) for p in cloud]
            chosen.append(max(range(40), key=to_chosen.__getitem__))
        assert found.tolist() == chosen


def test_all_points_are_sampled_once_before_any_twice():
    found = farthest_points(torch.randn(2, 25, 3), 25)
    assert found.sort(1).values.tolist() == 2 * [list(range(25))]


def test_nearest_points_are_those_of_brute_force():
    points, queries = torch.randn(2, 50, 3), torch.randn(2, 9, 3)
    found = nearest_points(points, queries, 6).sort(2).values
    for b in range(2):
        for q in range(9):
            order = sorted(range(50), key=lambda i: float((points[b, i] - queries[b, q]).norm()))
            assert found[b, q].tolist() == sorted(order[:6])


def test_a_close_neighbour_far_from_the_origin_is_found():
    """In float32 the product form of the distance loses differences this small."""
    points = torch.full((1, 3, 3), 1000.0)
    points[0, :, 0] += torch.tensor([0.0, 0.25, 0.5])
    assert nearest_points(points, points[:, 2:], 2).sort().values.tolist() == [[[1, 2]]]


def test_take():
    values = torch.randn(2, 5, 3)
    indices = torch.randint(5, (2, 4, 6))
    found = take(values, indices)
    assert all(
        torch.equal(found[b, i, j], values[b, indices[b, i, j]])
        for b in range(2)
        for i in range(4)
        for j in range(6)
    )


def test_clouds_that_cannot_be_sampled():
    points = torch.randn(3, 8, 3)
    with pytest.raises(ValueError, match="8 to a cloud, of which 9 are sampled"):
        require_clouds(points, 9)
    with pytest.raises(ValueError, match=r"must be \(B, N, 3\), got \(3, 3, 8\)"):
        require_clouds(points.transpose(1, 2), 1)
    for value in (torch.nan, torch.inf):
        bad = points.clone()
        bad[1, 4, 2] = value
        with pytest.raises(ValueError, match="cloud 1 has coordinates that are not finite"):
            require_clouds(bad, 8)
    bad = points.clone()
    bad[2] = 0.5
    with pytest.raises(ValueError, match="all points of cloud 2 are the same"):
        require_clouds(bad, 8)
    flat = points.clone()
    flat[..., 2] = 0
    require_clouds(flat, 8)
