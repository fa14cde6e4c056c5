"""Count and draw the confusion matrix of predictions that `test.py --out` wrote.

mmsegmentation's tool of that name is not used: it multiplies uint8 labels by the number of classes,
which wraps from 17 classes on (20 x 21 is 164), and it pairs the predictions in the order of
their file names with the samples in the order of the dataset. Here a prediction belongs to the
image of its name, and the counts are written beside the picture.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from mmseg.registry import DATASETS

from mmseg_ext import register_all_modules
from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.commands._one_line import one_line
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.reports.confusion import count_confusion, draw_confusion


@one_line
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
    if args.color_theme not in colormaps:
        raise ValueError(f"--color-theme: matplotlib has no {args.color_theme!r}")
    config = load_settings(args.config, args.cfg_options)
    dataset = DATASETS.build(config.test_dataloader.dataset)
    counts = count_confusion(dataset, args.prediction_path)
    classes = dataset.metainfo["classes"]
    path = args.save_dir / "confusion_matrix.png"
    draw_confusion(counts, classes, path, args.title, args.color_theme)
    with atomic_write(path.with_suffix(".csv")) as part, part.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["truth", *classes])
        rows.writerows([name, *row] for name, row in zip(classes, counts, strict=True))
    print(path)
    return 0
