"""IoU from exact counts, with an error for values that are not classes.

mmsegmentation's `IoUMetric` bins labels and predictions with `torch.histc`. It silently drops
values that are not classes, and its float32 bins stop counting at 2**24 pixels of a class in one
image. Here the counts are integers, and an invalid value is an error that names the file.
mmengine collects the results of several processes through files in a folder that all can read. Here
the processes add one matrix, so machines need no common folder.
"""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine import dist
from mmengine.logging import print_log
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.datasets.label_loading import describe_counts
from mmseg_ext.errors import LabelError, LaunchError, labels_outside
from mmseg_ext.reports.results_hook import images_of_process


@METRICS.register_module()
class CheckedIoUMetric(IoUMetric):
    """`IoUMetric` with exact counts, and the same results for valid label maps.

    If `ignore_index` is a class, its scores are NaN, and the means leave it out. In mmsegmentation
    it counts as 0 as soon as one pixel is predicted as this class.

    After an evaluation `confusion` `(classes, classes)` contains the number of pixels of all
    processes by label (rows) and prediction (columns). It is None before, and with `format_only`.
    `collect_device` and `collect_dir` have no effect. Label maps with only one class, such as masks
    of 0 and 255, are a warning. It also takes the arguments of `IoUMetric`.

    Args:
        class_scores: scores of single classes that the results contain, such as 'IoU.crop' or
            'Acc.crop'. `mmseg-ext train` adds those that hooks need.
        images_file: an .npz file for the counts of each image, which `read_images` reads.

    Raises:
        LabelError: in `process`, for a label map with values other than the classes and
            `ignore_index`, or with another size than the prediction.
        LaunchError: when the scores are computed, for another name in `class_scores`.
        ValueError: in `process`, for a predicted class that the dataset does not have.
    """

    confusion: Tensor | None = None
    by_class: dict[str, float]  # the scores of each class, 0 to 1, by names like 'IoU.crop'
    _written: dict[str, str]  # the image of each label map that an evaluation has written
    _names: list[str]  # of the files of the images in `results`

    def __init__(
        self,
        ignore_index: int = 255,
        iou_metrics: list[str] = ["mIoU"],
        nan_to_num: int | None = None,
        beta: int = 1,
        collect_device: str = "cpu",
        output_dir: str | None = None,
        format_only: bool = False,
        prefix: str | None = None,
        *,
        class_scores: Sequence[str] = (),
        images_file: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            ignore_index,
            iou_metrics,
            nan_to_num,
            beta,
            collect_device,
            output_dir,
            format_only,
            prefix,
            **kwargs,
        )
        self.class_scores = list(class_scores)
        self.images_file = images_file
        self._names, self._written = [], {}

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            if self.output_dir is not None:
                path = f"{self.output_dir}/{Path(sample['img_path']).stem}.png"
                _warn_of_other(path, {sample["img_path"], self._written.get(path)})
                self._written[path] = sample["img_path"]
            try:
                super().process(data_batch, [sample])
            except LabelError as error:
                path = sample.get("seg_map_path", sample.get("img_path", "a label map"))
                raise LabelError(f"{path}: {error}") from None
            self._names.append(Path(sample.get("img_path", "")).name)

    @staticmethod
    def intersect_and_union(
        pred_label: Tensor, label: Tensor, num_classes: int, ignore_index: int
    ) -> Tensor:
        """Count pixels by label and prediction: sparse int64 `(num_classes, num_classes)`.

        Both maps are `(H, W)` with the same dtype; `label` may contain `ignore_index`.
        """
        if pred_label.shape != label.shape:
            raise LabelError(f"is {_size(label)}, but its prediction is {_size(pred_label)}")
        counted = label != ignore_index
        prediction, label = pred_label[counted].long(), label[counted].long()  # (N,)
        illegal = _outside(label, num_classes)
        if illegal:
            numbers = f"0 to {num_classes - 1}"
            raise LabelError(labels_outside(num_classes, illegal, numbers, ignore_index))
        illegal = _outside(prediction, num_classes)
        if illegal:
            raise ValueError(
                f"decode_head.num_classes: predicted {illegal}, but the dataset has {num_classes} "
                f"classes; set num_classes={num_classes}"
            )
        counts = torch.bincount(label * num_classes + prediction, minlength=num_classes**2)
        return counts.view(num_classes, num_classes).cpu().to_sparse()

    def evaluate(self, size: int) -> dict[str, float]:
        """Compute the scores of the `size` images that all processes have processed."""
        own = self.results[: images_of_process(size)]
        images = [*zip(self._names, own, strict=False)]  # longer, if an image was repeated
        self.results.clear()
        self._names.clear()
        if self.output_dir is not None:  # several processes can have written one file
            images_of: dict[str, set[str]] = {}
            for written in dist.all_gather_object(self._written):
                for path, image in written.items():
                    images_of.setdefault(path, set()).add(image)
            for path, several in images_of.items():
                _warn_of_other(path, several)
            self._written = {}
        if self.images_file is not None and not self.format_only:
            self._write_images(self.images_file, images, size)
        if not self.format_only:
            classes = len((self.dataset_meta or {})["classes"])
            counts = sum(own, torch.zeros(classes, classes, dtype=torch.int64))
            dist.all_reduce(counts)
            own = [counts]
        scores = self.compute_metrics(own)
        if not self.prefix:
            return scores
        return {f"{self.prefix}/{name}": score for name, score in scores.items()}

    def _write_images(self, path: str, own: list[tuple[str, Tensor]], size: int) -> None:
        """Write names and counts of all processes' images in the order of the dataset.

        Of the matrices (classes, classes), the file has the entries that are not zero.
        """
        parts = [(name, (one.indices(), one.values())) for name, one in own]
        images = dist.collect_results(parts, size, "gpu")  # 'cpu' needs a folder that all share
        if images is None:  # not the main process
            return
        sizes = [len(values) for _, (_, values) in images]
        pairs = torch.cat([indices for _, (indices, _) in images], 1).numpy()  # (2, entries)
        with atomic_write(path) as part:
            np.savez_compressed(
                part,
                names=np.array([name for name, _ in images]),
                classes=np.array((self.dataset_meta or {})["classes"]),
                ignore_index=self.ignore_index,
                image=np.repeat(np.arange(len(images)), sizes),
                truth=pairs[0],
                prediction=pairs[1],
                pixels=torch.cat([values for _, (_, values) in images]).numpy(),
            )

    def compute_metrics(self, results: list[Tensor]) -> dict[str, float]:
        """Compute the scores from matrices of counts, and store their sum."""
        if self.format_only:
            return super().compute_metrics(results)
        counts = torch.stack([result.to_dense() for result in results]).sum(0)
        self.confusion = counts
        intersection, of_label, predicted = counts.diag(), counts.sum(1), counts.sum(0)
        if of_label.count_nonzero() == 1:
            message = (
                "val_dataloader: the label maps contain only one class, so a model that always "
                "predicts it scores 100; 255 is ignored and cannot be a second class"
            )
            print_log(message, logger="current", level=logging.WARNING)
        union = of_label + predicted - intersection
        meta: Any = self.dataset_meta
        shown = list(meta["classes"])
        if self.ignore_index in range(len(shown)):
            shown[self.ignore_index] += " (ignored)"
        self.dataset_meta = {**meta, "classes": shown}  # of the table
        scores = super().compute_metrics([(intersection, union, predicted, of_label)])
        self.dataset_meta = meta
        for name in self.class_scores:
            scores[name] = round(100 * self.by_class[name], 2)
        return scores

    def total_area_to_metrics(self, *areas: Any, **settings) -> dict[str, np.ndarray]:
        """Compute the scores of the classes from areas (classes,), and set `by_class`."""
        scores, self.by_class = super().total_area_to_metrics(*areas, **settings), {}
        meta: Any = self.dataset_meta
        for key in scores.keys() - {"aAcc"}:
            for i, name in enumerate(meta["classes"]):
                if i == self.ignore_index:
                    scores[key][i] = np.nan
                else:
                    self.by_class[f"{key}.{name}"] = float(scores[key][i])
        unknown = sorted(set(self.class_scores) - self.by_class.keys())
        if unknown:
            raise LaunchError(
                f"val_evaluator.class_scores={unknown[0]!r}: not a score of a class that counts; "
                f"use {', '.join(sorted(self.by_class)[:4])}, ..."
            )
        return scores


class Images(NamedTuple):
    """The images of an evaluation.

    `areas` (images, classes, 3) are pixels that are hit, true and predicted; the union of the last
    two has true + predicted - hit. They are zero for an ignored class.
    """

    names: list[str]
    classes: list[str]
    areas: np.ndarray


def read_images(path: str | Path) -> Images:
    """Read the `images_file` of `CheckedIoUMetric`."""
    with np.load(path) as file:
        found = dict(file)
    names, classes = found["names"].tolist(), found["classes"].tolist()
    areas = np.zeros((len(names), len(classes), 3), np.int64)
    image, truth, prediction = found["image"], found["truth"], found["prediction"]
    is_hit = truth == prediction
    np.add.at(areas, (image[is_hit], truth[is_hit], 0), found["pixels"][is_hit])
    np.add.at(areas, (image, truth, 1), found["pixels"])
    np.add.at(areas, (image, prediction, 2), found["pixels"])
    if found["ignore_index"] in range(len(classes)):
        areas[:, int(found["ignore_index"])] = 0
    return Images(names, classes, areas)


def _warn_of_other(path: str, images: Collection[str | None]) -> None:
    """Warn if a label map is of several images. A process can repeat the last one."""
    if len({*images} - {None}) > 1:
        message = f"{path}: overwritten; several images are called so"
        print_log(message, logger="current", level=logging.WARNING)


def _size(labels: Tensor) -> str:
    """Return 'WIDTHxHEIGHT' of a map (H, W)."""
    return "x".join(map(str, reversed(labels.shape)))


def _outside(values: Tensor, num_classes: int) -> str:
    """Return the values that are not classes with their pixel counts, or ''."""
    outside = (values < 0) | (values >= num_classes)
    if not outside.any():
        return ""
    found, counts = values[outside].unique(return_counts=True)
    return describe_counts(found.tolist(), counts.tolist())
