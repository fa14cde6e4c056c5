"""Score models on the nuclei: classes, objects, kinds of image, time and memory.

    python -m benchmarks.nuclei_scores val CONFIG CHECKPOINT [CONFIG CHECKPOINT ...]

An object is a connected component of the class nucleus. It is found if its IoU with an outlined
nucleus is above 0.5; each object and each nucleus counts once. The objects are compared with the
published masks, not with the label map, in which touching nuclei lose their border.
"""

import argparse
import resource
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate

import mmseg_ext
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.datasets.nuclei import NucleiDataset, number_nuclei
from mmseg_ext.evaluation.object_metric import match_objects, number_objects, object_scores

CLASSES = NucleiDataset.METAINFO["classes"]
COLORED = 8  # mean difference between the largest and the smallest channel of stained tissue
BRIGHT = 100  # mean value of a bright field


@dataclass
class Scores:
    """Sums over images."""

    images: int = 0
    confusion: np.ndarray = field(default_factory=lambda: np.zeros((3, 3), np.int64))
    objects: list[tuple[int, int, int]] = field(default_factory=list)  # of `match_objects`

    def add(self, predicted: np.ndarray, labels: np.ndarray, nuclei: np.ndarray) -> None:
        """Add an image: classes (H, W), labels (H, W), and numbered nuclei (H, W)."""
        counts = np.bincount(labels.ravel() * 3 + predicted.ravel(), minlength=9)
        self.confusion += counts.reshape(3, 3)
        self.images += 1
        self.objects.append(match_objects(number_objects(predicted == 1), nuclei))

    def numbers(self) -> dict[str, float]:
        """Return IoU, precision, recall and F1 in percent, and the error of the count."""
        objects = object_scores(self.objects)
        table = self.confusion
        iou = table.diagonal() / np.maximum(table.sum(0) + table.sum(1) - table.diagonal(), 1)
        cells = table[1:, 1:].sum() / (table.sum() - table[0, 0])
        return {
            "images": self.images,
            "nuclei": sum(true for _, _, true in self.objects),
            **{name: 100 * value for name, value in zip(CLASSES, iou.tolist(), strict=True)},
            "mIoU": 100 * iou.mean(),
            "pixel accuracy": 100 * table.trace() / table.sum(),
            "nucleus or border": 100 * cells,
            "precision": objects["precision"],
            "recall": objects["recall"],
            "F1": objects["F1"],
            "count error": objects["count_error"],
        }


def kind_of(image: np.ndarray) -> str:
    """Return the kind of an image (H, W, 3): the dataset does not name it."""
    channels = image.astype(np.int16)
    if (channels.max(2) - channels.min(2)).mean() > COLORED:
        return "stained tissue"
    return "bright field" if channels.mean() > BRIGHT else "fluorescence"


def score(config: str, checkpoint: str, split: str) -> dict[str, dict[str, float]]:
    """Return the numbers of all images and of each kind, and the median time of an image."""
    model = mmseg_ext.get_model(config, weights=checkpoint)
    settings = model.cfg.test_dataloader.dataset
    dataset = NucleiDataset(settings.data_root, split, pipeline=settings.pipeline)
    scores, seconds = defaultdict(Scores), []
    for i in range(len(dataset)):
        sample = dataset[i]
        data = sample["data_samples"]
        start = time.process_time()
        with torch.no_grad():
            (result,) = model.test_step(pseudo_collate([sample]))
        seconds.append(time.process_time() - start)
        predicted = result.pred_sem_seg.data[0].numpy().astype(np.int64)
        labels = data.gt_sem_seg.data[0].numpy().astype(np.int64)
        nuclei = number_nuclei(Path(data.img_path).parents[1])
        kind = kind_of(cv2.imread(data.img_path))
        for name in ("all", kind):
            scores[name].add(predicted, labels, nuclei)
    numbers = {name: scores[name].numbers() for name in sorted(scores)}
    numbers["all"]["ms"] = 1000 * float(np.median(seconds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of the process, in KiB
    numbers["all"]["peak MiB"] = peak / 1024
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("split", choices=SPLITS)
    parser.add_argument("models", nargs="+", metavar="CONFIG CHECKPOINT")
    args = parser.parse_args()
    mmseg_ext.register_all_modules()
    torch.set_num_threads(1)
    for config, checkpoint in zip(args.models[::2], args.models[1::2], strict=True):
        kinds = score(config, checkpoint, args.split)
        rows = [
            [key, *(f"{numbers[key]:.1f}" if key in numbers else "" for numbers in kinds.values())]
            for key in kinds["all"]
        ]
        print(f"{Path(config).stem}, {args.split}\n\n{markdown(['', *kinds], rows)}")


if __name__ == "__main__":
    main()
