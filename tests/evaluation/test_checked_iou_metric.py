"""mIoU against torchmetrics and mmsegmentation's metric; invalid values are errors."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine import dist
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from mmseg_ext.errors import LabelError, LaunchError
from mmseg_ext.evaluation import CheckedIoUMetric
from mmseg_ext.evaluation.checked_iou_metric import read_images
from tests.messages import lines_with


def evaluated(kind, predictions, labels, classes, **more) -> tuple[IoUMetric, dict]:
    metric = METRICS.build({"type": kind, "iou_metrics": ["mIoU", "mDice", "mFscore"], **more})
    metric.dataset_meta = {"classes": tuple(f"c{i}" for i in range(classes))}
    samples = [
        {
            "pred_sem_seg": {"data": prediction[None]},
            "gt_sem_seg": {"data": label[None]},
            "seg_map_path": f"mask_{i}.png",
        }
        for i, (prediction, label) in enumerate(zip(predictions, labels, strict=True))
    ]
    metric.process({}, samples)
    return metric, metric.compute_metrics(metric.results)


def result_of(*arguments, **more) -> dict:
    return evaluated(*arguments, **more)[1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 19))
def test_equals_torchmetrics_and_mmsegmentation(seed, classes):
    """Half of the classes are absent and left out, and a fifth of the pixels is ignored."""
    rng = np.random.RandomState(seed)
    present = rng.choice(classes, max(1, classes // 2), replace=False)
    predictions = torch.from_numpy(rng.choice(present, (3, 7, 9)))
    labels = torch.from_numpy(rng.choice(present, (3, 7, 9)))
    labels = torch.where(torch.from_numpy(rng.rand(3, 7, 9) < 0.5), predictions, labels)
    labels[torch.from_numpy(rng.rand(3, 7, 9) < 0.2)] = 255
    metric, ours = evaluated("CheckedIoUMetric", predictions, labels, classes)
    intersection, of_label = metric.confusion.diag(), metric.confusion.sum(1)
    assert of_label.sum() == (labels != 255).sum()
    union = of_label + metric.confusion.sum(0) - intersection
    theirs = MulticlassJaccardIndex(classes, average=None, ignore_index=255)(predictions, labels)
    occurs = union > 0
    torch.testing.assert_close((intersection / union)[occurs], theirs[occurs], rtol=0, atol=1e-6)
    assert ours["mIoU"] == pytest.approx(100 * theirs[occurs].mean().item(), abs=0.00501)
    accuracy = MulticlassAccuracy(classes, average="micro", ignore_index=255)(predictions, labels)
    assert ours["aAcc"] == pytest.approx(100 * accuracy.item(), abs=0.00501)
    stock = result_of("IoUMetric", predictions, labels, classes)
    assert ours.keys() == stock.keys() and len(ours) == 7
    for key, value in stock.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=0.0101, equal_nan=True)


def test_absent_classes_are_nan_or_nan_to_num(capsys):
    """Label maps with only one class, such as masks of 0 and 255, are a warning."""
    predictions = labels = torch.zeros(1, 4, 4, dtype=torch.long)
    result_of("CheckedIoUMetric", predictions, torch.arange(16).view(1, 4, 4) % 3, 3)
    assert not lines_with(capsys.readouterr().out, "val_dataloader:")
    assert result_of("CheckedIoUMetric", predictions, labels, 3)["mIoU"] == 100
    zero = result_of("CheckedIoUMetric", predictions, labels, 3, nan_to_num=0)
    assert zero["mIoU"] == pytest.approx(33.33)
    assert lines_with(capsys.readouterr().out, "WARNING", "val_dataloader:", 100, 255)


def test_an_ignored_class_is_in_no_mean(monkeypatch):
    """Predicted or not, class 0 has no score. In mmsegmentation it counts as 0."""
    labels = torch.tensor([[[0, 0, 1, 1, 2, 2, 2, 2]]])
    predictions = torch.tensor([[[1, 0, 1, 0, 2, 2, 2, 1]]])
    more = {"ignore_index": 0, "class_scores": ["Acc.c2", "IoU.c1"]}
    log = Mock()
    monkeypatch.setattr("mmseg.evaluation.metrics.iou_metric.print_log", log)
    metric, ours = evaluated("CheckedIoUMetric", predictions, labels, 3, **more)
    assert metric.dataset_meta["classes"] == ("c0", "c1", "c2")
    table = log.call_args.args[0].splitlines()
    assert any("c0 (ignored)" in line and line.count("nan") == 6 for line in table)
    expected = {
        "aAcc": 66.67,
        "mIoU": (100 / 3 + 75) / 2,
        "mAcc": 62.5,
        "mDice": (50 + 600 / 7) / 2,
    }
    expected |= {"mPrecision": 75, "mRecall": 62.5, "mFscore": expected["mDice"]}
    assert ours == pytest.approx(expected | {"Acc.c2": 75, "IoU.c1": 33.33}, abs=0.00501)
    theirs = result_of("IoUMetric", predictions, labels, 3, ignore_index=0)
    assert theirs["mIoU"] == pytest.approx(expected["mIoU"] * 2 / 3, abs=0.00501)
    for name in ("IoU.c0", "mIoU.c1", "IoU.c3"):
        with pytest.raises(LaunchError, match=f"class_scores='{name}'.*Acc.c1, Acc.c2"):
            result_of("CheckedIoUMetric", predictions, labels, 3, **more | {"class_scores": [name]})


def test_predictions_are_only_written(tmp_path, capsys, monkeypatch):
    """`format_only` is for test sets without labels."""
    more = {"format_only": True, "output_dir": str(tmp_path)}
    metric = METRICS.build({"type": "CheckedIoUMetric", **more})
    metric.dataset_meta = {"classes": ("a", "b")}
    data = {"data": torch.ones(1, 2, 2, dtype=torch.long)}
    metric.process({}, [{"pred_sem_seg": data, "img_path": "a.jpg"}])
    assert "overwritten" not in capsys.readouterr().out
    metric.process({}, [{"pred_sem_seg": data, "img_path": "other/a.jpg"}])
    assert "a.png: overwritten" in capsys.readouterr().out
    for image, is_other in (("a/b.jpg", False), ("c/b.jpg", True)):  # of another process
        parts = [{"b.png": "a/b.jpg"}, {"b.png": image}]
        with monkeypatch.context() as patch:
            patch.setattr(dist, "all_gather_object", lambda own, parts=parts: parts)
            metric.evaluate(2)
        assert ("b.png: overwritten" in capsys.readouterr().out) == is_other
    assert metric.compute_metrics(metric.results) == {} and metric.confusion is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.slow
def test_counts_more_pixels_than_float32():
    label = torch.zeros(1, 4097, 4097, dtype=torch.long)
    counts = CheckedIoUMetric.intersect_and_union(label[0], label[0], 2, 255)
    assert counts.to_dense().tolist() == [[4097**2, 0], [0, 0]]
    assert 4097**2 > 2**24


def test_invalid_values_are_errors():
    predictions = torch.zeros(2, 4, 4, dtype=torch.long)
    labels = torch.zeros(2, 4, 4, dtype=torch.long)
    labels[1, 0] = 3
    labels[1, 1, :2] = 200
    assert result_of("IoUMetric", predictions, labels, 3)["mIoU"] > 0  # mmsegmentation drops them
    with pytest.raises(LabelError) as error:
        result_of("CheckedIoUMetric", predictions, labels, 3)
    for part in ("mask_1.png", "3 (4 pixels), 200 (2 pixels)"):
        assert part in str(error.value)
    labels[labels > 0] = 7
    result_of("CheckedIoUMetric", predictions, labels, 3, ignore_index=7)
    with pytest.raises(LabelError, match=r"3 \(16 pixels\)"):  # the first invalid value
        result_of("CheckedIoUMetric", predictions, predictions + 3, 3)
    with pytest.raises(ValueError, match=r"predicted 5 \(16 pixels\)"):
        result_of("CheckedIoUMetric", predictions + 5, predictions, 3)
    with pytest.raises(LabelError, match=r"mask_0\.png.*3x2.*2x3"):
        result_of("CheckedIoUMetric", predictions[:, :3, :2], predictions[:, :2, :3], 3)


def test_the_pixels_of_each_image_are_written(tmp_path):
    random = np.random.RandomState(0)
    truths, predictions = torch.from_numpy(random.randint(0, 4, (2, 5, 6, 7)))
    truths[0, 0] = 255
    path = tmp_path / "tests/images.npz"
    metric = METRICS.build({"type": "CheckedIoUMetric", "images_file": str(path)})
    metric.dataset_meta = {"classes": ("a", "b", "c", "d")}
    for i in range(5):
        sample = {"pred_sem_seg": {"data": predictions[i]}, "gt_sem_seg": {"data": truths[i]}}
        metric.process({}, [{**sample, "img_path": f"folder/{i}.png"}])
    metric.evaluate(5)
    images = read_images(path)
    assert images.names == [f"{i}.png" for i in range(5)] and images.classes == list("abcd")
    for i in range(5):
        counted = truths[i] != 255
        for c in range(4):
            hit, true, predicted = images.areas[i, c]
            assert true == (truths[i] == c).sum()
            assert predicted == ((predictions[i] == c) & counted).sum()
            assert hit == ((truths[i] == c) & (predictions[i] == c)).sum()
    total = metric.confusion.numpy()
    assert (images.areas.sum(0)[:, 0] == total.diagonal()).all()
    assert (images.areas.sum(0)[:, 2] == total.sum(0)).all()
    metric.process({}, [{**sample, "img_path": "next.png"}])
    metric.evaluate(1)
    assert read_images(path).names == ["next.png"]


def test_images_of_two_processes_are_in_the_order_of_the_dataset(tmp_path, monkeypatch):
    """Process r has the images r, r + 2, ...; the second one repeats an image."""
    path, parts = tmp_path / "images.npz", []
    for rank, images in ((1, [1, 3, 0]), (0, [0, 2, 4])):
        metric = METRICS.build({"type": "CheckedIoUMetric", "images_file": str(path)})
        metric.dataset_meta = {"classes": tuple("abcde")}
        for i in images:
            label = torch.full((1, 2, i + 1), i)
            sample = {"pred_sem_seg": {"data": label}, "gt_sem_seg": {"data": label}}
            metric.process({}, [{**sample, "img_path": f"{i}.png"}])

        def gather(own):
            parts.insert(0, own)
            return parts

        monkeypatch.setattr("mmengine.dist.dist.all_gather_object", gather)
        monkeypatch.setattr("mmengine.dist.dist.get_dist_info", lambda rank=rank: (rank, 2))
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        metric.evaluate(5)
    images = read_images(path)
    assert images.names == [f"{i}.png" for i in range(5)]
    assert images.areas[..., 0].tolist() == np.diag([2, 4, 6, 8, 10]).tolist()


def test_an_ignored_class_has_no_pixels_in_the_file(tmp_path):
    path = tmp_path / "images.npz"
    metric = METRICS.build(
        {"type": "CheckedIoUMetric", "ignore_index": 0, "images_file": str(path)}
    )
    metric.dataset_meta = {"classes": ("a", "b")}
    maps = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 0, 1]])
    samples = [{"pred_sem_seg": {"data": maps[0]}, "gt_sem_seg": {"data": maps[1]}}]
    metric.process({}, samples)
    metric.evaluate(1)
    assert read_images(path).areas.tolist() == [[[0, 0, 0], [1, 2, 1]]]
