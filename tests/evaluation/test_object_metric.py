"""Objects by hand: F1, and the error of their number."""

import numpy as np
import pytest
import torch
from mmseg.registry import METRICS

from mmseg_ext.errors import LaunchError
from mmseg_ext.evaluation.object_metric import match_objects, number_objects, object_scores
from tests.messages import raises_message

CLASSES = ("background", "object", "border")


def sample(predicted: np.ndarray, truth: np.ndarray) -> dict:
    """Return a sample as an evaluator passes it."""
    maps = {"pred_sem_seg": predicted, "gt_sem_seg": truth}
    return {name: {"data": torch.from_numpy(labels)[None]} for name, labels in maps.items()}


def metric(**settings):
    built = METRICS.build({"type": "ObjectMetric", "object_class": "object", **settings})
    built.dataset_meta = {"classes": CLASSES}
    return built


def test_objects_of_two_images():
    """Of four objects two are found, and one of the three that are predicted is none."""
    truth = np.zeros((2, 10, 20), np.int64)
    truth[0, 0:4, 0:4] = truth[0, 0:4, 8:12] = truth[0, 6:8, 0:2] = 1
    truth[0, 0:4, 4:8] = 2  # a border connects no objects
    truth[1, 0:2, 0:2] = 1
    truth[1, 5:8] = 255
    predicted = truth.copy()
    predicted[0, 0:4, 3] = 0  # 12 of 16 pixels are left
    predicted[0, 2:4, 8:12] = 0  # 8 of 16: the IoU is not above 0.5
    predicted[0, 6:8, 0:2] = 0
    predicted[1, 5:8] = 0
    predicted[1, 6, 3] = 1  # where the truth is not known
    evaluated = metric()
    evaluated.process({}, [sample(predicted[0], truth[0]), sample(predicted[1], truth[1])])
    scores = evaluated.evaluate(2)
    assert scores == pytest.approx(
        {
            "objects/F1": 100 * 4 / 7,
            "objects/precision": 100 * 2 / 3,
            "objects/recall": 50,
            "objects/count_error": 100 * (1 / 3 + 0) / 2,
        }
    )


def test_diagonal_neighbors_are_two_objects():
    assert number_objects(np.eye(3, dtype=bool)).max() == 3


@pytest.mark.parametrize("seed", range(5))
def test_matches_are_those_of_every_pair(seed):
    random = np.random.RandomState(seed)
    maps = []
    for _ in range(2):
        coarse = random.randint(0, 6, (4, 4)).astype(np.int32)
        maps.append(np.kron(coarse, np.ones((3, 3), np.int32)))
    predicted, truth = maps[0], np.where(random.rand(12, 12) < 0.2, maps[1], maps[0])
    expected = 0
    for i in range(1, predicted.max() + 1):
        for j in range(1, truth.max() + 1):
            both = np.count_nonzero((predicted == i) & (truth == j))
            either = np.count_nonzero((predicted == i) | (truth == j))
            expected += both > 0.5 * either
    assert expected > 0
    assert match_objects(predicted, truth) == (expected, predicted.max(), truth.max())


def test_images_without_objects_or_label_maps():
    assert np.isnan(list(object_scores([(0, 0, 0)]).values())).all()
    wrong = object_scores([(0, 2, 0), (1, 1, 1)])
    assert wrong == pytest.approx({"F1": 50, "precision": 100 / 3, "recall": 100, "count_error": 0})
    evaluated = metric()
    evaluated.process({}, [{"pred_sem_seg": {"data": torch.ones(1, 2, 2)}}])
    assert evaluated.compute_metrics(evaluated.results) == {}


def test_an_unknown_class_is_named():
    with raises_message(
        LaunchError, "'cell'", "background, object, border", where="val_evaluator.object_class"
    ):
        metric(object_class="cell").class_index()
