"""Objects that are found, and the error of their number.

An object is a connected component of a class: pixels that share an edge. It is found if its IoU
with a predicted component is above 0.5, so no object is found twice.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from mmseg.registry import METRICS

from mmseg_ext.errors import LaunchError, join_names
from mmseg_ext.evaluation.counting_metric import CountingMetric


def number_objects(is_object: np.ndarray) -> np.ndarray:
    """Return the components of a mask (H, W) bool: 0 outside, 1 ... one number each, int32."""
    _, numbers = cv2.connectedComponents(is_object.view(np.uint8), connectivity=4)
    return numbers


def match_objects(predicted: np.ndarray, truth: np.ndarray) -> tuple[int, int, int]:
    """Return how many objects match, and how many are predicted and true.

    Both maps (H, W) have a number for each object, from 1 on, and 0 elsewhere.
    """
    areas, true_areas = np.bincount(predicted.ravel()), np.bincount(truth.ravel())
    both = (predicted > 0) & (truth > 0)
    pairs = predicted[both].astype(np.int64) * len(true_areas) + truth[both]
    pairs, shared = np.unique(pairs, return_counts=True)
    union = areas[pairs // len(true_areas)] + true_areas[pairs % len(true_areas)] - shared
    matched = np.count_nonzero(shared > 0.5 * union)
    return int(matched), len(areas) - 1, len(true_areas) - 1


def object_f1(counts: np.ndarray) -> np.ndarray:
    """Return the F1 of objects (...) in percent from counts (..., 3): matched, predicted, true."""
    matched, predicted, true = np.moveaxis(np.asarray(counts, float), -1, 0)
    nothing = np.full(matched.shape, np.nan)
    return 200 * np.divide(matched, predicted + true, out=nothing, where=predicted + true > 0)


def object_scores(counts: Sequence[tuple[int, int, int]] | np.ndarray) -> dict[str, float]:
    """Return F1, precision, recall and the error of the count, in percent, NaN without objects.

    `counts` are the results of `match_objects` for each image. The error is the mean of
    |predicted - true| / true over the images that have objects.
    """
    total = np.sum(counts, axis=0, dtype=float)
    matched, predicted, true = total
    errors = [abs(found - there) / there for _, found, there in counts if there]
    with np.errstate(invalid="ignore"):
        return {
            "F1": float(object_f1(total)),
            "precision": float(100 * matched / predicted),
            "recall": float(100 * matched / true),
            "count_error": 100 * float(np.mean(errors)) if errors else np.nan,
        }


@METRICS.register_module()
class ObjectMetric(CountingMetric):
    """F1, precision and recall of the objects of a class, and the error of their number.

    The true objects are the components of the label maps. Pixels with `ignore_index` belong to no
    object. The scores are called `objects/F1`, `objects/precision`, `objects/recall` and
    `objects/count_error`; see `object_scores`. Images without label maps are left out.

    Args:
        object_class: name of the class.
        ignore_index: label of pixels that do not count.
        prefix: replaces 'objects' in the names of the scores.
        images_file: an .npy file for the counts (images, 3) of `match_objects`.

    Raises:
        LaunchError: if the dataset has no such class; `mmseg-ext train` finds it at the start.
    """

    default_prefix = "objects"
    score_names = ("F1", "precision", "recall", "count_error")

    def __init__(
        self,
        object_class: str,
        ignore_index: int = 255,
        prefix: str | None = None,
        images_file: str | None = None,
    ):
        super().__init__(ignore_index, prefix, images_file)
        self.object_class = object_class

    def class_index(self) -> int:
        """Return the index of the class that is counted."""
        classes = list((self.dataset_meta or {})["classes"])
        if self.object_class not in classes:
            raise LaunchError(
                f"val_evaluator.object_class={self.object_class!r}: the dataset has no such "
                f"class; use {join_names(classes)}"
            )
        return classes.index(self.object_class)

    def count(self, predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
        index = self.class_index()
        found = number_objects((predicted == index) & (truth != self.ignore_index))
        return np.array(match_objects(found, number_objects(truth == index)))

    def scores(self, counts: np.ndarray) -> dict[str, float]:
        return object_scores(counts)
