"""mIoU against torchmetrics and against stock; values that are no class stop it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.structures import PixelData
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS
from mmseg.structures import SegDataSample
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from mmseg_ext.errors import LabelError
from mmseg_ext.evaluation import CheckedIoUMetric


def samples(predictions, labels) -> list[dict]:
    return [
        {
            "pred_sem_seg": {"data": prediction[None]},
            "gt_sem_seg": {"data": label[None]},
            "seg_map_path": f"mask_{i}.png",
        }
        for i, (prediction, label) in enumerate(zip(predictions, labels, strict=True))
    ]


def result_of(kind, predictions, labels, classes, **more) -> dict:
    metric = METRICS.build({"type": kind, "iou_metrics": ["mIoU", "mDice", "mFscore"], **more})
    metric.dataset_meta = {"classes": tuple(f"c{i}" for i in range(classes))}
    metric.process({}, samples(predictions, labels))
    return metric.compute_metrics(metric.results)


def draw(seed: int, classes: int, size=(7, 9), images=3):
    """Maps in which some classes are absent, with a fifth of the pixels ignored."""
    rng = np.random.RandomState(seed)
    present = rng.choice(classes, max(1, classes // 2), replace=False)
    predictions = torch.from_numpy(rng.choice(present, (images, *size)))
    labels = torch.from_numpy(rng.choice(present, (images, *size)))
    agree = torch.from_numpy(rng.rand(images, *size) < 0.5)
    labels = torch.where(agree, predictions, labels)
    labels[torch.from_numpy(rng.rand(images, *size) < 0.2)] = 255
    return predictions, labels


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 19))
def test_miou_is_torchmetrics(seed, classes):
    """Per class over all images together, the classes that occur nowhere left out of the mean."""
    predictions, labels = draw(seed, classes)
    metric = CheckedIoUMetric()
    metric.dataset_meta = {"classes": tuple(range(classes))}
    metric.process({}, samples(predictions, labels))
    summary = metric.compute_metrics(metric.results)
    intersection = metric.confusion.diag()
    union = metric.confusion.sum(0) + metric.confusion.sum(1) - intersection
    theirs = MulticlassJaccardIndex(classes, average=None, ignore_index=255)(predictions, labels)
    occurs = union > 0
    torch.testing.assert_close((intersection / union)[occurs], theirs[occurs], rtol=0, atol=1e-6)
    assert summary["mIoU"] == pytest.approx(100 * theirs[occurs].mean().item(), abs=0.00501)
    accuracy = MulticlassAccuracy(classes, average="micro", ignore_index=255)(predictions, labels)
    assert summary["aAcc"] == pytest.approx(100 * accuracy.item(), abs=0.00501)
    assert metric.confusion.sum() == (labels != 255).sum()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 19))
def test_stock_results_on_legal_maps(seed, classes):
    predictions, labels = draw(seed, classes)
    ours = result_of("CheckedIoUMetric", predictions, labels, classes)
    stock = result_of("IoUMetric", predictions, labels, classes)
    assert ours.keys() == stock.keys() and len(ours) == 7
    for key, value in stock.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=0.0101, equal_nan=True)


def test_absent_class_is_nan_or_the_value_asked_for():
    predictions = labels = torch.zeros(1, 4, 4, dtype=torch.long)
    assert result_of("CheckedIoUMetric", predictions, labels, 3)["mIoU"] == 100
    zero = result_of("CheckedIoUMetric", predictions, labels, 3, nan_to_num=0)
    assert zero["mIoU"] == pytest.approx(33.33)


def test_more_pixels_than_float32_counts():
    label = torch.zeros(1, 4097, 4097, dtype=torch.long)
    counts = CheckedIoUMetric.intersect_and_union(label[0], label[0], 2, 255)
    assert counts.to_dense().tolist() == [[4097**2, 0], [0, 0]]
    assert 4097**2 > 2**24


def test_labels_outside_the_classes_are_refused_not_dropped():
    predictions = torch.zeros(2, 4, 4, dtype=torch.long)
    labels = torch.zeros(2, 4, 4, dtype=torch.long)
    labels[1, 0] = 3
    labels[1, 1, :2] = 200
    assert result_of("IoUMetric", predictions, labels, 3)["mIoU"] > 0  # as if they were not there
    with pytest.raises(LabelError) as error:
        result_of("CheckedIoUMetric", predictions, labels, 3)
    assert str(error.value).startswith(
        "mask_1.png: values outside the 3 classes: 3 (4 pixels), 200 (2 pixels)"
    )
    labels[labels == 200] = 0
    with pytest.raises(LabelError, match=r"3 \(4 pixels\); ignored is 7"):
        result_of("CheckedIoUMetric", predictions, labels, 3, ignore_index=7)
    labels[1, 0] = 7
    result_of("CheckedIoUMetric", predictions, labels, 3, ignore_index=7)


def test_negative_label_is_refused():
    labels = torch.zeros(1, 2, 2, dtype=torch.long)
    labels[0, 0, 0] = -1
    with pytest.raises(LabelError, match=r"-1 \(1 pixels\)"):
        result_of("CheckedIoUMetric", labels.abs(), labels, 3)


def test_predictions_of_more_classes_than_the_dataset_has():
    labels = torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"predicted 5 \(4 pixels\).*3 classes.*decode head"):
        result_of("CheckedIoUMetric", labels + 5, labels, 3)


def test_sizes_must_agree():
    labels = torch.zeros(1, 2, 3, dtype=torch.long)
    with pytest.raises(LabelError, match=r"mask_0\.png: is 3x2, its prediction 2x3"):
        result_of("CheckedIoUMetric", labels.transpose(1, 2), labels, 3)


def test_samples_of_the_model(tmp_path):
    """Data samples as mmseg's evaluator passes them, and predictions written to files."""
    sample = SegDataSample(metainfo={"img_path": "a/image.jpg", "reduce_zero_label": True})
    sample.set_data(
        {
            "pred_sem_seg": PixelData(data=torch.ones(1, 3, 4, dtype=torch.long)),
            "gt_sem_seg": PixelData(data=torch.ones(1, 3, 4, dtype=torch.long)),
        }
    )
    metric = CheckedIoUMetric(output_dir=str(tmp_path), format_only=True)
    assert isinstance(metric, IoUMetric)
    metric.dataset_meta = {"classes": ("a", "b")}
    metric.process({}, [sample.to_dict()])
    assert (tmp_path / "image.png").is_file() and metric.results == []
