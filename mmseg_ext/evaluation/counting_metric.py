"""Metrics whose scores are computed from counts of each image, which a file can keep."""

from collections.abc import Sequence

import numpy as np
from mmengine.evaluator import BaseMetric

from mmseg_ext.atomic_write import atomic_write


class CountingMetric(BaseMetric):
    """A metric that counts something in the label maps of each image.

    Subclasses define `count` and `scores`. Images without label maps are left out.

    Args:
        ignore_index: label of pixels that do not count.
        prefix: replaces `default_prefix` in the names of the scores.
        images_file: an .npy file for the counts (images, ...) of all images.
    """

    score_names: tuple[str, ...]

    def __init__(
        self, ignore_index: int = 255, prefix: str | None = None, images_file: str | None = None
    ):
        # Without a GPU this collects over gloo. 'cpu' would need a folder that all machines share.
        super().__init__("gpu", prefix)
        self.ignore_index = ignore_index
        self.images_file = images_file

    def count(self, predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return the counts of an image from two label maps (H, W)."""
        raise NotImplementedError

    def scores(self, counts: np.ndarray) -> dict[str, float]:
        """Return the scores of counts (images, ...), by `score_names`."""
        raise NotImplementedError

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            if "gt_sem_seg" in sample:
                truth = sample["gt_sem_seg"]["data"][0].cpu().numpy()
                predicted = sample["pred_sem_seg"]["data"][0].cpu().numpy()
                predicted = predicted.astype(truth.dtype, copy=False)  # floats of a single channel
                self.results.append(self.count(predicted, truth))

    def compute_metrics(self, results: list[np.ndarray]) -> dict[str, float]:
        if not results:
            return {}
        counts = np.stack(results)
        if self.images_file is not None:
            with atomic_write(self.images_file) as part:
                np.save(part, counts)
        return self.scores(counts)
