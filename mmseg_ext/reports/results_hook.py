"""The hook that writes what the report shows of a validation or test."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from PIL import Image
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.images.pictures import colorize, error_overlay, shrink, to_picture
from mmseg_ext.reports.scores import class_scores, mean_of_known

RESULTS = "results.json"
PICTURES = "examples"
WORST, TYPICAL = "worst", "typical"  # kinds of examples
_SIDE = 320  # pixels of an example's longer side
_GAP = 4


@dataclass(eq=False)
class _Example:
    """An image that the report may show."""

    name: str
    miou: float
    wrong: float  # share of the pixels that count
    picture: np.ndarray


@HOOKS.register_module()
class RunResultsHook(Hook):
    """Write `results.json` and `examples/*.jpg` to the log folder after a validation or a test.

    They contain what the log does not: classes, palette, the confusion matrix of all processes, and
    images with truth, prediction and wrong pixels. A later validation of the same run replaces
    them. The evaluator needs mmsegmentation's `IoUMetric` or `CheckedIoUMetric`. A test without
    label maps writes nothing.

    Args:
        examples: number of the images with the lowest mean IoU. Half as many typical ones, near the
            median, follow. With several processes they are images of the first.
    """

    priority = "LOW"

    def __init__(self, examples: int = 6):
        self.examples = examples
        self._start()

    def _start(self) -> None:
        self._confusion: Tensor | None = None
        self._scores: list[float] = []  # the mean IoU of this process's images
        self._worst: list[_Example] = []
        self._spread: list[_Example] = []  # evenly in the dataset

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self._see(runner, runner.val_loop, batch_idx, data_batch, outputs)

    def after_test_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self._see(runner, runner.test_loop, batch_idx, data_batch, outputs)

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        self._write(runner, runner.val_loop, f"validation at iteration {runner.iter}", metrics)

    def after_test_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        checkpoint = Path(runner.cfg.get("load_from") or "random weights").name
        self._write(runner, runner.test_loop, f"test of {checkpoint}", metrics)

    def _see(self, runner, loop, batch_idx: int, data_batch: Any, outputs: Any) -> None:
        """Count the pixels of a batch, and keep images that the report may show."""
        if batch_idx == 0:
            self._start()
        metric, dataset = _iou_metric(loop), loop.dataloader.dataset
        for i, sample in enumerate(outputs):
            if metric is None or "gt_sem_seg" not in sample:
                return
            classes = len(dataset.metainfo["classes"])
            if self._confusion is None:
                self._confusion = torch.zeros(classes, classes, dtype=torch.int64)
            place, own = len(self._scores), images_of_process(len(dataset))
            if place == own:
                return
            prediction, truth = sample.pred_sem_seg.data[0], sample.gt_sem_seg.data[0]
            counts = _count(prediction, truth, classes, metric.ignore_index)
            self._confusion += counts
            iou = class_scores(counts.numpy(), metric.ignore_index)["IoU"]
            score = float(mean_of_known(iou))
            self._scores.append(score)
            is_bad = len(self._worst) < self.examples or score < self._worst[-1].miou
            is_spread = place in np.linspace(0, own - 1, 2 * self.examples).astype(int)
            is_kept = not math.isnan(score) and (is_bad or is_spread)
            image = data_batch["inputs"][min(i, len(data_batch["inputs"]) - 1)]
            # With test-time augmentation an image is a list of views.
            if not is_kept or not isinstance(image, Tensor) or not dist.is_main_process():
                continue
            shown = to_picture(image.permute(1, 2, 0).cpu().numpy(), runner.cfg.get("rgb_bands"))
            labels = prediction.int().cpu().numpy(), truth.int().cpu().numpy()
            picture = _draw(shown, *labels, dataset.metainfo["palette"], metric.ignore_index)
            wrong = 1 - int(counts.trace()) / int(counts.sum())
            example = _Example(Path(getattr(sample, "img_path", "")).name, score, wrong, picture)
            if is_spread:
                self._spread.append(example)
            if is_bad:
                self._worst.append(example)
                self._worst = sorted(self._worst, key=lambda one: one.miou)[: self.examples]

    def _write(self, runner, loop, source: str, metrics: dict[str, float] | None) -> None:
        if self._confusion is None:
            return
        dist.all_reduce(self._confusion)
        if not dist.is_main_process() or not self._confusion.any():
            return
        cfg, dataset, folder = runner.cfg, loop.dataloader.dataset, Path(runner.log_dir)
        model = cfg.model.get("module", cfg.model)  # inside a model of test-time augmentation
        examples = []
        middle = np.nanmedian(self._scores)
        others = [example for example in self._spread if example not in self._worst]
        others.sort(key=lambda one: abs(one.miou - middle))
        for i, example in enumerate([*self._worst, *others[: self.examples // 2]]):
            with atomic_write(folder / PICTURES / f"{i}.jpg") as part:
                Image.fromarray(example.picture).save(part, "JPEG", quality=90, subsampling=0)
            kind = WORST if i < len(self._worst) else TYPICAL
            entry = {"file": f"{i}.jpg", "kind": kind, "name": example.name}
            examples.append({**entry, "miou": example.miou, "wrong": example.wrong})
        objects = {}  # the scores of each `ObjectMetric`, as shares, by its prefix
        for metric in loop.evaluator.metrics:
            keys = {name: f"{metric.prefix}/{name}" for name in getattr(metric, "score_names", ())}
            if metrics and "count_error" in keys and keys["F1"] in metrics:
                objects[metric.prefix] = {name: metrics[key] / 100 for name, key in keys.items()}
        content = {
            "source": source,
            "time": time.time(),
            "augmented": model is not cfg.model,
            "images": len(dataset),
            **seen_data(loop),
            "dataset": type(dataset).__name__,
            "config": Path(cfg.filename or "").stem,
            "head": _type(model.get("decode_head")),
            "backbone": _type(model.get("backbone")),
            "classes": list(dataset.metainfo["classes"]),
            "palette": np.asarray(dataset.metainfo["palette"]).tolist(),
            "confusion": self._confusion.tolist(),
            "ignore_index": _iou_metric(loop).ignore_index,
            "nan_to_num": getattr(_iou_metric(loop), "nan_to_num", None),
            "objects": objects,
            "examples": examples,
        }
        write_text(json.dumps(content), folder / RESULTS)


def images_of_process(count: int) -> int:
    """Return how many of so many images a sampler gives to this process.

    Process r of n has the images r, r + n, ...; then it repeats one if others have more.
    """
    return len(range(dist.get_rank(), count, dist.get_world_size()))


def seen_data(loop: Any) -> dict[str, Any]:
    """Return `split`, the folder or list of a loop's images, and the `views` of each image."""
    dataset = loop.dataloader.dataset
    folder = (getattr(dataset, "data_prefix", None) or {}).get("img_path", "")
    views = 1
    for step in getattr(getattr(dataset, "pipeline", None), "transforms", ()):
        views *= len(getattr(step, "subroutines", (step,)))  # of mmcv's TestTimeAug
    split = getattr(dataset, "ann_file", "") or folder or type(dataset).__name__
    return {"split": str(split), "views": views}


def _iou_metric(loop) -> Any:
    """Return the loop's `IoUMetric`, or None."""
    for metric in loop.evaluator.metrics:
        if hasattr(metric, "intersect_and_union"):
            return metric
    return None


def _count(prediction: Tensor, truth: Tensor, classes: int, ignored: int) -> Tensor:
    """Return the pixels by truth (rows) and prediction, (classes, classes) int64.

    Other values are left out, as in mmsegmentation's metric. `CheckedIoUMetric` reports them.
    """
    counted = (truth != ignored) & (truth >= 0) & (truth < classes) & (prediction < classes)
    pairs = truth[counted].long() * classes + prediction[counted].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).cpu()


def _type(part: dict | list[dict] | None) -> str:
    """Return the type of a backbone or head; the last of several heads."""
    if isinstance(part, list):
        part = part[-1]
    return str((part or {}).get("type", "none"))


def _draw(
    image: np.ndarray,
    prediction: np.ndarray,
    truth: np.ndarray,
    palette: Sequence[Sequence[int]],
    ignored: int,
) -> np.ndarray:
    """Return image and truth above prediction and errors, RGB uint8; `image` is RGB (h, w, 3)."""
    shown, true_labels, predicted = shrink(_SIDE, image, truth, prediction)
    errors = error_overlay(shown, true_labels, predicted, ignored)
    above = np.hstack([_framed(shown), _framed(colorize(true_labels, palette))])
    below = np.hstack([_framed(colorize(predicted, palette)), _framed(errors)])
    return np.vstack([above, below])[:-_GAP, :-_GAP]


def _framed(picture: np.ndarray) -> np.ndarray:
    """Return a picture (h, w, 3) with a gray border at the right and below."""
    return np.pad(picture, ((0, _GAP), (0, _GAP), (0, 0)), constant_values=128)
