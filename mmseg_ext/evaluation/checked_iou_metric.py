"""IoU that counts every pixel or stops.

mmsegmentation's `IoUMetric` bins labels and predictions with `torch.histc`, which silently drops
whatever is not a class; its float32 bins stop at 2**24 pixels of a class in one image. Here the
counts are integers, and a value that is no class is an error with the file's name.
"""

import logging
from collections.abc import Sequence

import torch
from mmengine.logging import print_log
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS
from torch import Tensor

from mmseg_ext.datasets.labels import describe_counts
from mmseg_ext.errors import LabelError


@METRICS.register_module()
class CheckedIoUMetric(IoUMetric):
    """`IoUMetric` with exact counts; same arguments, same results on legal label maps.

    After an evaluation `confusion` (classes, classes) holds the pixels by label (rows) and
    prediction; None before, and if nothing is compared (`format_only`). A warning tells of label
    maps that show one class alone, as masks of 0 and 255 do.

    Raises:
        LabelError: in `process`, for a label map with values other than the classes and
            `ignore_index`, or of another size than the prediction.
        ValueError: in `process`, for a prediction of a class that the dataset does not have.
    """

    confusion: Tensor | None = None

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            try:
                super().process(data_batch, [sample])
            except LabelError as error:
                path = sample.get("seg_map_path", sample.get("img_path", "a label map"))
                raise LabelError(f"{path}: {error}") from None

    @staticmethod
    def intersect_and_union(
        pred_label: Tensor, label: Tensor, num_classes: int, ignore_index: int
    ) -> Tensor:
        """Pixels by label (rows) and prediction, sparse int64 (num_classes, num_classes).

        Both maps are (H, W) of one dtype and hold classes; `label` may hold `ignore_index`.
        """
        if pred_label.shape != label.shape:
            sizes = ["x".join(map(str, reversed(x.shape))) for x in (label, pred_label)]
            raise LabelError(f"is {sizes[0]}, its prediction {sizes[1]}")
        counted = label != ignore_index
        prediction, label = pred_label[counted].long(), label[counted].long()  # (N,)
        if illegal := _outside(label, num_classes):
            raise LabelError(
                f"values outside the {num_classes} classes: {illegal}; ignored is {ignore_index}"
            )
        if illegal := _outside(prediction, num_classes):
            raise ValueError(
                f"predicted {illegal}, but the dataset has {num_classes} classes: num_classes of "
                "the decode head does not fit it"
            )
        counts = torch.bincount(label * num_classes + prediction, minlength=num_classes**2)
        return counts.view(num_classes, num_classes).cpu().to_sparse()

    def compute_metrics(self, results: list[Tensor]) -> dict[str, float]:
        """As `IoUMetric`; `results` are the matrices of the images, `confusion` keeps their sum."""
        if self.format_only:
            return super().compute_metrics(results)
        self.confusion = sum(result.to_dense() for result in results)
        intersection = self.confusion.diag()
        of_label, predicted = self.confusion.sum(1), self.confusion.sum(0)
        if of_label.count_nonzero() == 1:
            message = (
                "the label maps show one class alone, so that a model that always predicts it "
                "scores 100; 255 is ignored and cannot stand for a second class"
            )
            print_log(message, logger="current", level=logging.WARNING)
        union = of_label + predicted - intersection
        return super().compute_metrics([(intersection, union, predicted, of_label)])


def _outside(values: Tensor, num_classes: int) -> str:
    """The values that are no class, with their pixels; '' if there are none."""
    if not values.numel():
        return ""
    low, high = values.aminmax()
    if low >= 0 and high < num_classes:
        return ""
    found, counts = values[(values < 0) | (values >= num_classes)].unique(return_counts=True)
    return describe_counts(dict(zip(found.tolist(), counts.tolist(), strict=True)))
