"""A small classifier that evaluates generated images; its training takes seconds.

It measures how often the requested class is recognized, and a Frechet distance of its features.
That distance is not FID: the features differ, so the values cannot be compared.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from projects.eagan.data import Pictures, to_float


class Classifier(nn.Module):
    """Four convolutions, the mean over positions, and a linear layer.

    `torchmetrics.image.fid.FrechetInceptionDistance(feature=...)` accepts it.
    """

    num_features = 64

    def __init__(self, num_classes: int):
        super().__init__()

        def layer(in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
            conv = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
            return [conv, nn.BatchNorm2d(out_channels), nn.ReLU()]

        width = self.num_features
        self.layers = nn.Sequential(
            *layer(3, 32, 1), *layer(32, 32, 2), *layer(32, width, 2), *layer(width, width, 1)
        )
        self.classes = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, 3, H, W) to features (B, 64)."""
        return self.layers(to_float(images)).mean((2, 3))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the features of any number of images, computed in batches."""
        return torch.cat([self(batch) for batch in images.split(500)])

    def judge(self, images: Tensor, labels: Tensor, real: Tensor) -> dict[str, float]:
        """Return `distance` to the real images, and `recognised`, the share with class `labels`."""
        features = self.features(images)
        recognised = (self.classes(features).argmax(1) == labels).float().mean()
        distance = frechet_distance(features, self.features(real))
        return {"distance": distance, "recognised": recognised.item()}


def train_classifier(train: Pictures, num_classes: int, seed: int = 0) -> Classifier:
    """Train a classifier for 200 batches of 64 images; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Classifier(num_classes)
        optimizer = torch.optim.Adam(classifier.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        for _ in range(200):
            chosen = torch.randint(len(train.images), (64,))
            logits = classifier.classes(classifier(train.images[chosen]))
            loss = F.cross_entropy(logits, train.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return classifier.eval().requires_grad_(False)


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Compute |mean_a - mean_b|^2 + tr(cov_a + cov_b - 2 (cov_a cov_b)^(1/2)) (arXiv:1706.08500).

    Features are (N, D) and (M, D). The trace of the root is computed from the eigenvalues of a
    symmetric matrix.
    """
    a, b = a.double(), b.double()
    cov_a, cov_b = a.T.cov(), b.T.cov()
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T  # of cov_a
    common = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    difference = (a.mean(0) - b.mean(0)).square().sum()
    return float(difference + cov_a.trace() + cov_b.trace() - 2 * common)
