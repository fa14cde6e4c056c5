"""The Frechet distance between two sets of features, and the inception score.

Papers: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash
Equilibrium", arXiv:1706.08500; Salimans et al., "Improved Techniques for Training GANs",
arXiv:1606.03498.
Published code: mseitzer/pytorch-fid, whose files of statistics (`mu` and `sigma` in an `.npz`) are
read and written. It takes the root of a product of covariances; here the trace of that root comes
from the eigenvalues of a symmetric matrix, which are the same and real.

The distance is called FID only where the features are those of the Inception network.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Statistics(NamedTuple):
    """Mean (D,) and covariance (D, D) of features, in float64."""

    mean: Tensor
    covariance: Tensor


def statistics(features: Tensor) -> Statistics:
    """Mean and unbiased covariance of features (N, D).

    Raises:
        ValueError: for fewer than two samples, or values that are not finite.
    """
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"features must be (N, D) with N > 1, got {tuple(features.shape)}")
    if not features.isfinite().all():
        raise ValueError("features hold values that are not finite")
    features = features.double()
    return Statistics(features.mean(0), features.T.cov())


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """|mean_a - mean_b|^2 + tr(cov_a + cov_b - 2 (cov_a cov_b)^(1/2)).

    Raises:
        ValueError: for features of different width.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"statistics of {len(a.mean)} features meet some of {len(b.mean)}")
    values, vectors = torch.linalg.eigh(a.covariance)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T  # of cov_a
    common = torch.linalg.eigvalsh(root @ b.covariance @ root).clamp_min(0).sqrt().sum()
    difference = (a.mean - b.mean).square().sum()
    return float(difference + a.covariance.trace() + b.covariance.trace() - 2 * common)


def inception_score(logits: Tensor) -> float:
    """exp of the mean divergence of p(class | picture) from p(class), of logits (N, K)."""
    log_given = logits.double().log_softmax(1)  # N, K
    log_marginal = log_given.logsumexp(0) - np.log(len(logits))  # K
    return float((log_given.exp() * (log_given - log_marginal)).sum(1).mean().exp())


def write_statistics(found: Statistics, path: str | Path) -> None:
    """`mu` and `sigma` in an `.npz`, as pytorch-fid writes them."""
    with open(path, "wb") as file:
        np.savez_compressed(file, mu=found.mean.numpy(), sigma=found.covariance.numpy())


def read_statistics(path: str | Path) -> Statistics:
    """Statistics that this module or pytorch-fid wrote.

    Raises:
        ValueError: for a file that is missing or holds no such statistics.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            mean, covariance = (
                torch.from_numpy(archive[name]).double() for name in ("mu", "sigma")
            )
    except (OSError, ValueError, KeyError, EOFError, TypeError) as error:
        raise ValueError(
            f"{path}: no file of statistics (an .npz with mu and sigma, as pytorch-fid's "
            f"--save-stats writes): {error}"
        ) from error
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        shapes = f"mu {tuple(mean.shape)} and sigma {tuple(covariance.shape)}"
        raise ValueError(f"{path}: {shapes} are no mean and covariance of the same features")
    return Statistics(mean, covariance)
