"""IoU that counts every pixel or stops.

mmsegmentation's `IoUMetric` bins labels and predictions with `torch.histc`, which drops whatever
is not a class, in silence; its float32 bins stop at 2**24 pixels of a class in one image. Here
the counts are integers, and a value that is no class is an error with the file's name.
"""

from collections.abc import Sequence

import torch
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS
from torch import Tensor

from mmseg_ext.datasets.labels import LabelError


@METRICS.register_module()
class CheckedIoUMetric(IoUMetric):
    """`IoUMetric` with exact counts; same arguments, same results on legal label maps.

    Raises:
        LabelError: in `process`, for a label map with values other than the classes and
            `ignore_index`, or of another size than the prediction.
        ValueError: in `process`, for a prediction of a class that the dataset does not have.
    """

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        if not self.format_only:
            num_classes = len(self.dataset_meta["classes"])
            for sample in data_samples:
                prediction = sample["pred_sem_seg"]["data"].squeeze(0)  # (H, W)
                label = sample["gt_sem_seg"]["data"].squeeze(0).to(prediction.device)
                path = sample.get("seg_map_path", sample.get("img_path", "a label map"))
                self._require_legal(prediction, label, num_classes, path)
        super().process(data_batch, data_samples)

    def _require_legal(
        self, prediction: Tensor, label: Tensor, num_classes: int, path: str
    ) -> None:
        if prediction.shape != label.shape:
            (height, width), (h, w) = label.shape, prediction.shape
            raise LabelError(f"{path}: is {width}x{height}, its prediction {w}x{h}")
        illegal = ((label < 0) | (label >= num_classes)) & (label != self.ignore_index)
        wrong = (prediction < 0) | (prediction >= num_classes)
        bad_label, bad_prediction = torch.stack([illegal.any(), wrong.any()]).tolist()
        if bad_label:
            raise LabelError(
                f"{path}: values outside the {num_classes} classes: {_counts(label[illegal])}; "
                f"ignored is {self.ignore_index}"
            )
        if bad_prediction:
            raise ValueError(
                f"{path}: predicted {_counts(prediction[wrong])}, but the dataset has "
                f"{num_classes} classes: num_classes of the decode head does not fit it"
            )

    @staticmethod
    def intersect_and_union(
        pred_label: Tensor, label: Tensor, num_classes: int, ignore_index: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pixels (num_classes,) int64 of intersection, union, prediction and label of each class.

        Both maps are (H, W) of one dtype and hold classes; `label` may hold `ignore_index`.
        """
        counted = label != ignore_index
        prediction, label = pred_label[counted].long(), label[counted].long()  # (N,)
        confusion = torch.bincount(
            label * num_classes + prediction, minlength=num_classes**2
        ).reshape(num_classes, num_classes)  # (label, prediction)
        confusion = confusion.cpu()
        intersection, of_label, predicted = confusion.diag(), confusion.sum(1), confusion.sum(0)
        return intersection, of_label + predicted - intersection, predicted, of_label


def _counts(values: Tensor) -> str:
    distinct, counts = values.unique(return_counts=True)
    shown = zip(distinct[:8].tolist(), counts[:8].tolist(), strict=True)
    text = ", ".join(f"{value} ({count} pixels)" for value, count in shown)
    return text + (f", {len(distinct) - 8} more" if len(distinct) > 8 else "")
