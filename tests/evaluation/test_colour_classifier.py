"""The colour classifier: against colours that decide, colours that do not, and mmseg's IoU."""

import numpy as np
import pytest
import torch
from mmseg.evaluation import IoUMetric

from mmseg_ext.datasets import ShapesDataset
from mmseg_ext.evaluation.colour_classifier import (
    ColourClassifier,
    colour_miou,
    images_and_labels,
    mean_iou,
)

RECIPE = {"seed": 0, "train": 60, "val": 20, "size": 128}


def painted(label: np.ndarray, rng, colours: np.ndarray) -> np.ndarray:
    noise = rng.integers(-10, 11, (*label.shape, 3))
    return np.clip(colours[label] + noise, 0, 255).astype(np.uint8)


def test_colours_that_decide_are_learned():
    rng = np.random.default_rng(0)
    colours = np.array([[40, 40, 40], [200, 60, 60], [60, 200, 60]])
    labels = [rng.integers(0, 3, (32, 32)) for _ in range(8)]
    pairs = [(painted(y, rng, colours), y) for y in labels]
    classifier = ColourClassifier(3).fit(pairs[:4])
    assert mean_iou(((classifier.predict(x), y) for x, y in pairs[4:]), 3) == 1.0


def test_prior_weight():
    """Red is class 0 in 90 pixels of 360 and class 1 in 10 of 10: the prior turns the answer."""
    red, blue = (np.full((10, 10, 3), c, np.uint8) for c in ([250, 0, 0], [0, 0, 250]))
    label = np.zeros((10, 10), np.int64)
    label[0] = 1
    classifier = ColourClassifier(2).fit([(red, label)] + [(blue, np.zeros_like(label))] * 3)
    assert (classifier.predict(red, prior_weight=1.0) == 0).all()
    assert (classifier.predict(red, prior_weight=0.0) == 1).all()
    assert (classifier.predict(blue, prior_weight=0.0) == 0).all()


def test_ignored_pixels_are_not_counted():
    image = np.zeros((4, 4, 3), np.uint8)
    label = np.full((4, 4), 255)
    label[0, 0] = 1
    assert ColourClassifier(2).fit([(image, label)]).counts.sum() == 1
    with pytest.raises(ValueError, match="bins must be 1 to 256, got 0"):
        ColourClassifier(2, bins=0)


def test_mean_iou_is_mmsegs():
    generator = torch.Generator().manual_seed(0)
    metric = IoUMetric(iou_metrics=["mIoU"])
    metric.dataset_meta = {"classes": list("abcde")}
    pairs = []
    for _ in range(3):
        label = torch.randint(0, 5, (20, 30), generator=generator)
        prediction = torch.where(torch.rand(20, 30, generator=generator) < 0.6, label, 2)
        label[:2] = 255
        pairs.append((prediction.numpy(), label.numpy()))
        sample = {"pred_sem_seg": {"data": prediction}, "gt_sem_seg": {"data": label}}
        metric.process({}, [sample])
    ours = mean_iou(pairs, 5)
    assert abs(100 * ours - metric.compute_metrics(metric.results)["mIoU"]) <= 0.005 + 1e-9


def test_colour_says_nothing_about_shapes(tmp_path):
    train, val = (
        ShapesDataset(str(tmp_path / "s"), RECIPE, ann_file=f"ImageSets/Segmentation/{split}.txt")
        for split in ("train", "val")
    )
    miou = colour_miou(train, val)
    num_classes = len(train.metainfo["classes"])
    assert miou < 0.25
    # Not by weakness: it does no worse than answering background everywhere, a sixth of about 0.7.
    background = np.mean([(y == 0).mean() for _, y in images_and_labels(val)])
    assert miou >= background / num_classes - 0.02
