"""The distances against closed forms and against torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.image.fid import FrechetInceptionDistance

from projects.eagan.classifier import Classifier
from projects.eagan.data import make_shapes
from projects.eagan.frechet import (
    Statistics,
    frechet_distance,
    inception_score,
    read_statistics,
    statistics,
    write_statistics,
)


def gaussian(mean, deviations, turn: torch.Tensor | None = None) -> Statistics:
    covariance = torch.tensor(deviations).double().square().diag()
    if turn is not None:
        covariance = turn @ covariance @ turn.T
    return Statistics(torch.tensor(mean).double(), covariance)


def test_covariances_that_commute():
    """|m1 - m2|^2 + sum of (s1 - s2)^2, in any rotation."""
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    a = gaussian([1.0, 0, 2], [1.0, 2, 3], turn)
    b = gaussian([0.0, 0, 0], [2.0, 2, 0.5], turn)
    assert frechet_distance(a, b) == pytest.approx(5 + 1 + 0 + 2.5**2, rel=1e-12)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-12)


def test_covariances_that_do_not_commute():
    """In two dimensions tr (AB)^(1/2) = (tr AB + 2 (det AB)^(1/2))^(1/2)."""
    a, b = (m @ m.T for m in torch.randn(2, 2, 2, dtype=torch.float64))
    zero = torch.zeros(2, dtype=torch.float64)
    common = ((a @ b).trace() + 2 * (a.det() * b.det()).sqrt()).sqrt()
    expected = a.trace() + b.trace() - 2 * common
    found = frechet_distance(Statistics(zero, a), Statistics(zero, b))
    assert found == pytest.approx(expected.item(), rel=1e-10)


def test_a_singular_covariance():
    """Fewer samples than features, as small evaluations have."""
    features = torch.randn(5, 20)
    found = frechet_distance(statistics(features), statistics(features + 1))
    assert found == pytest.approx(20, rel=1e-6)


def test_inception_scores_that_are_known():
    certain = 100 * torch.eye(4).repeat(3, 1)
    assert inception_score(certain) == pytest.approx(4, rel=1e-9)
    assert inception_score(torch.zeros(7, 4)) == pytest.approx(1, rel=1e-12)
    # Two halves, each even over its own two of four classes: the divergence is log 2.
    halves = torch.tensor([[0.0, 0, -100, -100], [-100, -100, 0, 0]])
    assert math.log(inception_score(halves)) == pytest.approx(math.log(2), rel=1e-9)


def test_torchmetrics_finds_the_same_distance():
    classifier = Classifier(10).eval()
    real, generated = make_shapes(200, seed=0).images, make_shapes(150, seed=1).images // 2
    metric = FrechetInceptionDistance(feature=classifier)
    with torch.no_grad():
        metric.update(real, real=True)
        metric.update(generated, real=False)
        ours = frechet_distance(statistics(classifier(real)), statistics(classifier(generated)))
    assert ours == pytest.approx(metric.compute().item(), rel=1e-4)


def test_statistics_have_the_format_of_pytorch_fid(tmp_path):
    features = torch.randn(50, 4, dtype=torch.float64)
    found = statistics(features)
    path = tmp_path / "real.npz"
    write_statistics(found, path)
    with np.load(path) as archive:
        np.testing.assert_allclose(archive["mu"], features.numpy().mean(0))
        np.testing.assert_allclose(archive["sigma"], np.cov(features.numpy(), rowvar=False))
    again = read_statistics(path)
    assert torch.equal(again.mean, found.mean)
    assert torch.equal(again.covariance, found.covariance)


def test_bad_statistics(tmp_path):
    with pytest.raises(ValueError, match=r"none\.npz: no file of statistics"):
        read_statistics(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", mean=np.zeros(3))
    with pytest.raises(ValueError, match="mu"):
        read_statistics(tmp_path / "other.npz")
    np.savez(tmp_path / "odd.npz", mu=np.zeros(3), sigma=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"mu \(3,\) and sigma \(2, 2\)"):
        read_statistics(tmp_path / "odd.npz")
    with pytest.raises(ValueError, match="3 features meet some of 2"):
        frechet_distance(statistics(torch.randn(4, 3)), statistics(torch.randn(4, 2)))
    with pytest.raises(ValueError, match=r"N > 1, got \(1, 3\)"):
        statistics(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="not finite"):
        statistics(torch.tensor([[0.0], [torch.nan]]))
