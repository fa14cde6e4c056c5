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

from mmseg_ext.errors import LabelError


@METRICS.register_module()
class CheckedIoUMetric(IoUMetric):
    """`IoUMetric` with exact counts; same arguments, same results on legal label maps.

    After an evaluation `confusion` (classes, classes) holds the pixels by label (rows) and
    prediction; None before, and where nothing is compared (`format_only`).

    Raises:
        LabelError: in `process`, for a label map with values other than the classes and
            `ignore_index`, or of another size than the prediction.
        ValueError: in `process`, for a prediction of a class that the dataset does not have, and
            for an `output_dir` where classes do not fit the 8 bits of a label map.
    """

    confusion: Tensor | None = None

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        if self.output_dir is not None:
            meta = self.dataset_meta
            largest = len(meta["classes"]) - 1 + bool(meta.get("reduce_zero_label"))
            if largest > 255:
                raise ValueError(f"output_dir: PNG files of 8 bits cannot hold the value {largest}")
        for sample in data_samples:
            try:
                super().process(data_batch, [sample])
            except _IllegalLabelError as error:
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
            raise _IllegalLabelError(f"is {sizes[0]}, its prediction {sizes[1]}")
        counted = label != ignore_index
        prediction, label = pred_label[counted].long(), label[counted].long()  # (N,)
        if label.numel():
            _require_classes(prediction, label, num_classes, ignore_index)
        counts = torch.bincount(label * num_classes + prediction, minlength=num_classes**2)
        return counts.view(num_classes, num_classes).cpu().to_sparse()

    def compute_metrics(self, results: list[Tensor]) -> dict[str, float]:
        """As `IoUMetric`; `results` are the matrices of the images, `confusion` keeps their sum."""
        if self.format_only:
            return super().compute_metrics(results)
        self.confusion = sum(result.to_dense() for result in results)
        intersection = self.confusion.diag()
        of_label, predicted = self.confusion.sum(1), self.confusion.sum(0)
        union = of_label + predicted - intersection
        return super().compute_metrics([(intersection, union, predicted, of_label)])


class _IllegalLabelError(ValueError):
    """A label map that cannot be scored, before its file is named."""


def _require_classes(
    prediction: Tensor, label: Tensor, num_classes: int, ignore_index: int
) -> None:
    bounds = torch.stack([*label.aminmax(), *prediction.aminmax()]).tolist()
    if bounds[0] < 0 or bounds[1] >= num_classes:
        raise _IllegalLabelError(
            f"values outside the {num_classes} classes: {_outside(label, num_classes)}; "
            f"ignored is {ignore_index}"
        )
    if bounds[2] < 0 or bounds[3] >= num_classes:
        raise ValueError(
            f"predicted {_outside(prediction, num_classes)}, but the dataset has {num_classes} "
            "classes: num_classes of the decode head does not fit it"
        )


def _outside(values: Tensor, num_classes: int) -> str:
    values = values[(values < 0) | (values >= num_classes)]
    distinct, counts = values.unique(return_counts=True)
    shown = zip(distinct[:8].tolist(), counts[:8].tolist(), strict=True)
    text = ", ".join(f"{value} ({count} pixels)" for value, count in shown)
    return text + (f", {len(distinct) - 8} more" if len(distinct) > 8 else "")
