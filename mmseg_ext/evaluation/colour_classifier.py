"""What colour alone gives away: a classifier that sees one pixel at a time.

It is the Bayes classifier on quantised RGB: the classes' colour histograms over all training
pixels, smoothed, and the class of the highest posterior. A segmentor's mIoU means something only
in so far as it is above this one's.
"""

from collections.abc import Iterable

import numpy as np
from mmseg.datasets import BaseSegDataset
from PIL import Image

ImageAndLabel = tuple[np.ndarray, np.ndarray]


def images_and_labels(dataset: BaseSegDataset) -> Iterable[ImageAndLabel]:
    """Image (H, W, 3) uint8 RGB and label (H, W) of every sample, without the pipeline."""
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        with Image.open(info["img_path"]) as image, Image.open(info["seg_map_path"]) as label:
            yield np.asarray(image.convert("RGB")), np.asarray(label)


class ColourClassifier:
    """Histogram classifier with `bins` levels per channel.

    `prior_weight` is the power that the classes' frequencies are raised to: 1 is the classifier
    of least error, which on a large background answers little else; 0 treats rare classes alike.
    """

    def __init__(self, num_classes: int, bins: int = 16):
        if not 1 <= bins <= 256:
            raise ValueError(f"bins must be 1 to 256, got {bins}")
        self.num_classes = num_classes
        self.bins = bins
        self.counts = np.zeros((bins**3, num_classes))

    def fit(self, pairs: Iterable[ImageAndLabel]) -> "ColourClassifier":
        for image, label in pairs:
            known = label < self.num_classes
            flat = self._bin(image)[known] * self.num_classes + label[known]
            self.counts += np.bincount(flat, minlength=self.counts.size).reshape(self.counts.shape)
        return self

    def predict(self, image: np.ndarray, prior_weight: float = 1.0) -> np.ndarray:
        """Labels (H, W) of an image (H, W, 3) uint8."""
        return self._table(prior_weight)[self._bin(image)]

    def _table(self, prior_weight: float) -> np.ndarray:
        """The class of every colour bin."""
        frequency = self.counts.sum(0) + 1.0
        likelihood = (self.counts + frequency / frequency.sum()) / frequency
        return (likelihood * frequency**prior_weight).argmax(1)

    def _bin(self, image: np.ndarray) -> np.ndarray:
        level = image.astype(np.int64) * self.bins // 256
        return (level[..., 0] * self.bins + level[..., 1]) * self.bins + level[..., 2]


def mean_iou(pairs: Iterable[ImageAndLabel], num_classes: int) -> float:
    """mIoU in [0, 1] of pairs (prediction, label): areas summed over images, as mmseg's IoUMetric.

    Labels from `num_classes` up are ignored; a class that occurs on neither side is left out.
    """
    confusion = np.zeros((num_classes, num_classes))
    for prediction, label in pairs:
        known = label < num_classes
        flat = label[known].astype(np.int64) * num_classes + prediction[known]
        confusion += np.bincount(flat, minlength=num_classes**2).reshape(confusion.shape)
    intersection = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - intersection
    return float((intersection[union > 0] / union[union > 0]).mean())


def colour_miou(train: BaseSegDataset, val: BaseSegDataset) -> float:
    """mIoU on `val` of the colour classifier fitted on `train`.

    Of the two priors the one that does better on `val` counts: the choice favours colour.
    """
    num_classes = len(train.metainfo["classes"])
    classifier = ColourClassifier(num_classes).fit(images_and_labels(train))
    scores = []
    for weight in (0.0, 1.0):
        pairs = ((classifier.predict(x, weight), y) for x, y in images_and_labels(val))
        scores.append(mean_iou(pairs, num_classes))
    return max(scores)
