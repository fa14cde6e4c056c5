"""A small classifier that is trained on the spot and judges generated pictures.

It says whether the class that was asked for can be recognised in a picture, and its features carry
a Frechet distance. That distance is no FID: other features, other numbers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from projects.eagan.data import Pictures, to_float


class Classifier(nn.Module):
    """Four convolutions, the mean over the picture, one linear map.

    It has what `torchmetrics.image.fid.FrechetInceptionDistance(feature=...)` asks of a module.
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
        """uint8 pictures (B, 3, H, W) to features (B, 64)."""
        return self.layers(to_float(images)).mean((2, 3))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """`forward` of any number of pictures, in batches."""
        return torch.cat([self(batch) for batch in images.split(500)])

    def judge(self, images: Tensor, labels: Tensor, real: Tensor) -> dict[str, float]:
        """`distance` to the real pictures, and `recognised`, the share whose class is `labels`."""
        features = self.features(images)
        recognised = (self.classes(features).argmax(1) == labels).float().mean()
        distance = frechet_distance(features, self.features(real))
        return {"distance": distance, "recognised": recognised.item()}


def train_classifier(train: Pictures, num_classes: int, seed: int = 0) -> Classifier:
    """A classifier after 200 batches of 64 pictures; the caller's random state stays as it is."""
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
    """|mean_a - mean_b|^2 + tr(cov_a + cov_b - 2 (cov_a cov_b)^(1/2)) of features (N, D), (M, D).

    arXiv:1706.08500. The trace of the root comes from the eigenvalues of a symmetric matrix.
    """
    a, b = a.double(), b.double()
    cov_a, cov_b = a.T.cov(), b.T.cov()
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T  # of cov_a
    common = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    difference = (a.mean(0) - b.mean(0)).square().sum()
    return float(difference + cov_a.trace() + cov_b.trace() - 2 * common)
