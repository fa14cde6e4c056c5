"""Sampling and grouping against brute force."""

import torch

from projects.eat.sampling import farthest_points, nearest_points


def test_farthest_points_are_those_of_brute_force():
    points = torch.randn(3, 40, 3, dtype=torch.float64)
    for cloud, found in zip(points, farthest_points(points, 17), strict=True):
        chosen = [0]
        while len(chosen) < 17:
            to_chosen = [min(float((p - cloud[i]).norm()) for i in chosen) for p in cloud]
            chosen.append(max(range(40), key=to_chosen.__getitem__))
        assert found.tolist() == chosen


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
