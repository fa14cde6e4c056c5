"""F1 of boundaries, on maps whose boundaries are known."""

import warnings

import numpy as np
import pytest
import torch
from mmseg.registry import METRICS

from mmseg_ext.evaluation.boundary_metric import boundary_counts, boundary_f1


def square(offset: int = 0, size: int = 100) -> np.ndarray:
    labels = np.zeros((size, size), np.int64)
    labels[20 + offset : 60 + offset, 20:60] = 1
    return labels


def test_a_square_has_the_boundary_of_its_sides():
    counts = boundary_counts(square(), square(), 3)
    inside, around = 4 * 39, 4 * 40
    assert counts.tolist() == [4 * [around], 4 * [inside], 4 * [0]]
    assert boundary_f1(counts)[:2].tolist() == [100, 100] and np.isnan(boundary_f1(counts)[2])


@pytest.mark.parametrize(("offset", "f1"), [(1, 100), (2, 51.9)])
def test_boundaries_may_be_off_by_a_share_of_the_diagonal(offset, f1):
    """0.75 % of 141 pixels is one pixel; with an offset of two, the sides along it stay near."""
    counts = boundary_counts(square(offset), square(), 2)
    assert boundary_f1(counts)[1] == pytest.approx(f1, abs=2)


def test_pixels_next_to_ignored_ones_do_not_count():
    truth = square()
    truth[:, :40] = 255
    counts = boundary_counts(square(), truth, 2)
    assert (counts[1] == counts[1, 0]).all() and 0 < counts[1, 0] < 2 * 39
    whole = np.full((9, 9), 255)
    assert not boundary_counts(whole, whole, 2).any()


def test_a_prediction_without_the_class_has_no_f1():
    counts = boundary_counts(np.zeros((100, 100), np.int64), square(), 2)
    assert boundary_f1(counts).tolist() == [0, 0]


def test_the_metric_sums_over_images_and_writes_them(tmp_path):
    path = tmp_path / "boundary.npy"
    metric = METRICS.build({"type": "BoundaryMetric", "images_file": str(path)})
    metric.dataset_meta = {"classes": ("a", "b")}
    for offset in (0, 5):
        sample = {"pred_sem_seg": {"data": torch.from_numpy(square(offset))[None]}}
        sample["gt_sem_seg"] = {"data": torch.from_numpy(square())[None]}
        metric.process({}, [sample, {}])
    scores = metric.evaluate(2)
    counts = np.load(path)
    assert (
        counts.shape == (2, 2, 4) and (counts[1] == boundary_counts(square(5), square(), 2)).all()
    )
    assert scores["boundary/mF1"] == pytest.approx(boundary_f1(counts.sum(0)).mean())
    assert 0 < scores["boundary/mF1"] < 100


def test_floats_of_a_single_channel_and_an_image_of_one_row():
    metric = METRICS.build({"type": "BoundaryMetric"})
    metric.dataset_meta = {"classes": ("a", "b")}
    truth = torch.from_numpy(square())[None]
    for part in (truth, truth[:, 50:51]):
        sample = {"pred_sem_seg": {"data": part.float()}, "gt_sem_seg": {"data": part}}
        metric.process({}, [sample])
    assert metric.evaluate(2)["boundary/mF1"] == 100
    sample["gt_sem_seg"] = {"data": torch.full_like(part, 255)}
    metric.process({}, [sample])
    with warnings.catch_warnings(action="error"):
        assert np.isnan(metric.evaluate(1)["boundary/mF1"])
