"""Confusion matrices: counted, turned into IoU, drawn."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from mmseg_ext.atomic_write import save_figure


def class_iou(confusion: np.ndarray) -> np.ndarray:
    """IoU of each class of a confusion matrix; NaN where it has neither truth nor prediction."""
    hit = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - hit
    return np.divide(hit, union, out=np.full(len(hit), np.nan), where=union > 0)


def confusion_matrix(
    truth: np.ndarray, prediction: np.ndarray, classes: int, ignored: int = 255
) -> np.ndarray:
    """Pixels by truth (rows) and prediction (columns), (classes, classes) int64.

    Raises:
        ValueError: for a label that is neither a class nor ignored, and for a prediction that is
            no class where the truth is one.
    """
    used = truth != ignored
    truth, prediction = truth[used].astype(np.int64), prediction[used].astype(np.int64)
    for name, labels in (("truth", truth), ("prediction", prediction)):
        wrong = labels[(labels < 0) | (labels >= classes)]
        if wrong.size:
            raise ValueError(
                f"labels must be from 0 on and below classes={classes}, got {wrong[0]} in the "
                f"{name}"
            )
    counts = np.bincount(truth * classes + prediction, minlength=classes**2)
    return counts.reshape(classes, classes)


def count_confusion(dataset, folder: Path) -> np.ndarray:
    """Pixels by truth (rows) and prediction (columns) over the whole dataset, int64.

    Predictions are PNG files of the images' names, as `IoUMetric(output_dir=...)` writes them:
    with `reduce_zero_label`, one above the class.

    Raises:
        ValueError: for an image without a prediction, or one of another size or of no classes.
    """
    classes = len(dataset.metainfo["classes"])
    total = np.zeros((classes, classes), dtype=np.int64)
    for i in range(len(dataset)):
        sample = dataset[i]["data_samples"]
        path = folder / (Path(sample.img_path).stem + ".png")
        if not path.is_file():
            raise ValueError(f"{path}: no prediction for {sample.img_path}")
        truth = sample.gt_sem_seg.data[0].numpy()  # (H, W)
        prediction = np.asarray(Image.open(path)).astype(np.int64)
        if dataset.reduce_zero_label:
            prediction -= 1
        if prediction.shape != truth.shape:
            raise ValueError(f"{path}: is {prediction.shape}, its label map {truth.shape}")
        try:
            total += confusion_matrix(truth, prediction, classes, dataset.ignore_index)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return total


def draw_confusion(
    counts: np.ndarray, classes: Sequence[str], path: Path, title: str, theme: str
) -> None:
    """Percent of each class's pixels (row) by what they were taken for (column), as a PNG.

    Raises:
        ValueError: for an unknown colour map.
    """
    rows = counts.sum(1, keepdims=True)
    percent = 100 * counts / np.maximum(rows, 1)
    side = max(4.0, 0.45 * len(classes) + 2)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(percent, cmap=theme, vmin=0, vmax=100)
    figure.colorbar(picture, label="% of the class's pixels", shrink=0.8)
    axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("prediction")
    axes.set_ylabel("truth")
    axes.set_title(title)
    if len(classes) <= 30:  # more are too small to read
        for (i, j), value in np.ndenumerate(percent):
            if rows[i]:
                colour = "white" if value > 50 else "black"
                axes.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    save_figure(figure, path, 150)
