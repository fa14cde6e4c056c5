"""F1 of the boundaries of classes.

A pixel of a class is on its boundary if a neighbor (of four) in the image belongs to another class.
A predicted boundary pixel is right if a true one of the class is at most 0.75 % of the image's
diagonal away (Csurka et al. 2013), and a true one is found the same way.
"""

import cv2
import numpy as np
from mmseg.registry import METRICS

from mmseg_ext.evaluation.counting_metric import CountingMetric
from mmseg_ext.reports.scores import mean_of_known

_REACH = 0.0075  # of the diagonal
_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))


def boundary_counts(
    predicted: np.ndarray, truth: np.ndarray, classes: int, ignore_index: int = 255
) -> np.ndarray:
    """Return right, predicted, found and true boundary pixels of the classes, (classes, 4) int64.

    Both maps are (H, W). Pixels next to ignored ones are on no boundary: the true class is unknown.
    """
    counts = np.zeros((classes, 4), np.int64)
    reach = max(1.0, _REACH * float(np.hypot(*truth.shape)))
    known = cv2.erode((truth != ignore_index).view(np.uint8), _CROSS, borderValue=1) > 0

    def boundary(labels: np.ndarray, index: int) -> np.ndarray:
        mask = (labels == index).view(np.uint8)
        is_inside = cv2.erode(mask, _CROSS, borderValue=1) > 0
        return (mask > 0) & np.logical_not(is_inside) & known

    def is_near(own: np.ndarray, other: np.ndarray) -> int:
        if not own.any() or not other.any():
            return 0
        distance = cv2.distanceTransform((~other).view(np.uint8), cv2.DIST_L2, 5)
        return int(np.count_nonzero(distance[own] <= reach))

    for index in set(np.unique(truth)) | set(np.unique(predicted)):
        if index < classes and index != ignore_index:
            own, of_truth = boundary(predicted, index), boundary(truth, index)
            counts[index, :2] = is_near(own, of_truth), own.sum()
            counts[index, 2:] = is_near(of_truth, own), of_truth.sum()
    return counts


def boundary_f1(counts: np.ndarray) -> np.ndarray:
    """Return the F1 of classes (..., C) in percent from counts (..., C, 4), NaN without pixels."""
    right, predicted, found, true = np.moveaxis(np.asarray(counts, float), -1, 0)
    precision, recall = right / np.maximum(predicted, 1), found / np.maximum(true, 1)
    f1 = 200 * precision * recall / np.maximum(precision + recall, 1e-12)
    return np.where(predicted + true > 0, f1, np.nan)


@METRICS.register_module()
class BoundaryMetric(CountingMetric):
    """Mean F1 of the classes' boundaries, over the pixels of all images: `boundary/mF1`.

    Images without label maps are left out.

    Args:
        ignore_index: label of pixels that do not count.
        prefix: replaces 'boundary' in the name of the score.
        images_file: an .npy file for the counts (images, classes, 4) of `boundary_counts`.
    """

    default_prefix = "boundary"
    score_names = ("mF1",)

    def count(self, predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
        classes = len((self.dataset_meta or {})["classes"])
        return boundary_counts(predicted, truth, classes, self.ignore_index)

    def scores(self, counts: np.ndarray) -> dict[str, float]:
        return {"mF1": float(mean_of_known(boundary_f1(counts.sum(0))))}
