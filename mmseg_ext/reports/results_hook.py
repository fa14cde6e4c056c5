"""The hook that writes what the report shows of a validation or test."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from PIL import Image
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.images.pictures import colorize, error_overlay, shrink, to_picture

RESULTS = "results.json"
PICTURES = "examples"
_SIDE = 320  # pixels of an example's longer side
_GAP = 4


@HOOKS.register_module()
class RunResultsHook(Hook):
    """Write `results.json` and `examples/*.jpg` to the log folder after a validation or a test.

    They contain what the log does not: classes, palette, the confusion matrix of
    `CheckedIoUMetric`, and a few images with truth, prediction and wrong pixels. A later validation
    of the same run replaces them. A test without label maps writes nothing.

    Args:
        examples: number of images, evenly spaced in the dataset.
    """

    priority = "LOW"

    def __init__(self, examples: int = 6):
        self.examples = examples
        self._drawn: list[tuple[np.ndarray, dict]] = []

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self._draw(runner, runner.val_loop, batch_idx, data_batch, outputs)

    def after_test_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self._draw(runner, runner.test_loop, batch_idx, data_batch, outputs)

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        self._write(runner, runner.val_loop, f"validation at iteration {runner.iter}")

    def after_test_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        checkpoint = Path(runner.cfg.get("load_from") or "random weights").name
        self._write(runner, runner.test_loop, f"test of {checkpoint}")

    def _draw(self, runner, loop, batch_idx: int, data_batch: Any, outputs: Any) -> None:
        if batch_idx == 0:
            self._drawn = []
        chosen = np.linspace(0, len(loop.dataloader) - 1, self.examples).astype(int)
        metric, image, sample = _metric(loop), data_batch["inputs"][0], outputs[0]
        if metric is None or not is_main_process():
            return
        if batch_idx not in chosen:
            return
        if "gt_sem_seg" not in sample or not isinstance(image, Tensor):
            return  # test-time augmentation has several views of an image
        meta, ignored = loop.dataloader.dataset.metainfo, metric.ignore_index
        prediction, truth = sample.pred_sem_seg.data[0].cpu(), sample.gt_sem_seg.data[0].cpu()
        counts = metric.intersect_and_union(prediction, truth, len(meta["classes"]), ignored)
        iou = class_iou(counts.to_dense().numpy(), ignored)
        score = None if np.isnan(iou).all() else float(np.nanmean(iou))
        name = Path(getattr(sample, "img_path", "")).name
        entry = {"file": f"{len(self._drawn)}.jpg", "name": name, "miou": score}
        shown = to_picture(image.permute(1, 2, 0).cpu().numpy(), runner.cfg.get("rgb_bands"))
        picture = _example(shown, prediction, truth, meta["palette"], ignored)
        self._drawn.append((picture, entry))

    def _write(self, runner, loop, source: str) -> None:
        metric = _metric(loop)
        if metric is None or not is_main_process():
            return
        if metric.confusion is None:
            return
        cfg, dataset, folder = runner.cfg, loop.dataloader.dataset, Path(runner.log_dir)
        model = cfg.model.get("module", cfg.model)  # inside a model of test-time augmentation
        for i, (picture, _) in enumerate(self._drawn):
            with atomic_write(folder / PICTURES / f"{i}.jpg") as part:
                Image.fromarray(picture).save(part, "JPEG", quality=90, subsampling=0)
        content = {
            "source": source,
            "time": time.time(),
            "augmented": model is not cfg.model,
            "images": len(dataset),
            "dataset": type(dataset).__name__,
            "config": Path(cfg.filename or "").stem,
            "head": _type(model.get("decode_head")),
            "backbone": _type(model.get("backbone")),
            "classes": list(dataset.metainfo["classes"]),
            "palette": np.asarray(dataset.metainfo["palette"]).tolist(),
            "confusion": metric.confusion.tolist(),
            "ignore_index": metric.ignore_index,
            "examples": [entry for _, entry in self._drawn],
        }
        write_text(json.dumps(content), folder / RESULTS)


def _metric(loop):
    """Return the loop's metric that has a confusion matrix, or None."""
    for metric in loop.evaluator.metrics:
        if hasattr(metric, "confusion"):
            return metric
    return None


def _type(part: dict | list[dict] | None) -> str:
    """Return the type of a backbone or head; the last of several heads."""
    if isinstance(part, list):
        part = part[-1]
    return str((part or {}).get("type", "none"))


def _example(
    image: np.ndarray, prediction: Tensor, truth: Tensor, palette: list[list[int]], ignored: int
) -> np.ndarray:
    """Return image and truth above prediction and errors, RGB uint8; `image` is RGB (h, w, 3)."""
    true_labels, predicted = truth.int().cpu().numpy(), prediction.int().cpu().numpy()
    shown, true_labels, predicted = shrink(_SIDE, image, true_labels, predicted)
    errors = error_overlay(shown, true_labels, predicted, ignored)
    above = np.hstack([_framed(shown), _framed(colorize(true_labels, palette))])
    below = np.hstack([_framed(colorize(predicted, palette)), _framed(errors)])
    return np.vstack([above, below])[:-_GAP, :-_GAP]


def _framed(picture: np.ndarray) -> np.ndarray:
    """Return a picture (h, w, 3) with a gray border at the right and below."""
    return np.pad(picture, ((0, _GAP), (0, _GAP), (0, 0)), constant_values=128)


def class_iou(confusion: np.ndarray, ignore_index: int = 255) -> np.ndarray:
    """Return the IoU of each class; NaN for a class without truth and prediction, or ignored.

    Args:
        confusion: (classes, classes), pixels by truth (rows) and prediction.
        ignore_index: the label that is ignored, a class or not.
    """
    hit = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - hit
    union[np.arange(len(hit)) == ignore_index] = 0
    return np.divide(hit, union, out=np.full(len(hit), np.nan), where=union > 0)
