"""The command line of `tools/analysis_tools/confusion_matrix.py`.

mmsegmentation's tool of that name is not used: it multiplies uint8 labels by the number of classes,
which wraps from 17 classes on (20 x 21 is 164), and it pairs the predictions in the order of
their file names with the samples in the order of the dataset. Here a prediction belongs to the
image of its name, and the counts are written beside the picture.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext import register_all_modules
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.engine.launch_error import LaunchError
from mmseg_ext.reports.run_data import confusion_matrix


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Confusion matrix of predictions that tools/test.py --out wrote."
    )
    parser.add_argument("config")
    parser.add_argument("prediction_path", type=Path, help="folder of the predicted label maps")
    parser.add_argument("save_dir", type=Path, help="folder for the picture and the counts")
    parser.add_argument("--color-theme", default="Blues", help="a colour map of matplotlib")
    parser.add_argument("--title", default="Normalized Confusion Matrix")
    parser.add_argument("--cfg-options", nargs="+", action=ConfigOptions)
    args = parser.parse_args(argv)
    register_all_modules()
    try:
        if args.color_theme not in colormaps:
            raise ValueError(f"--color-theme: matplotlib has no {args.color_theme!r}")
        config = load_settings(args.config, args.cfg_options)
        dataset = DATASETS.build(config.test_dataloader.dataset)
        counts = count_confusion(dataset, args.prediction_path)
    except (LaunchError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    classes = dataset.metainfo["classes"]
    args.save_dir.mkdir(parents=True, exist_ok=True)
    path = args.save_dir / "confusion_matrix.png"
    draw_confusion(counts, classes, path, args.title, args.color_theme)
    header = ",".join(("truth", *classes))
    lines = [",".join((name, *map(str, row))) for name, row in zip(classes, counts, strict=True)]
    path.with_suffix(".csv").write_text("\n".join((header, *lines)) + "\n")
    print(path)
    return 0


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
    figure.savefig(path, dpi=150)
