"""What checking the data costs: the dataset check, the checked loaders and the checked metric.

On images of ADE20K's usual size, 683x512 JPEG, with PNG label maps of 150 classes, made by code.
The two sides of each comparison run in one process and take turns: the dataset check against
nothing but reading and decoding the same files; the training pipeline of ADE20K's dataset base
with the checked loaders against the same pipeline with the stock ones, on equal random numbers;
the checked IoU metric against the stock one.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import mmcv
import numpy as np
import torch
from mmcv.transforms import Compose
from mmengine.config import Config
from mmseg.registry import METRICS, TRANSFORMS

from mmseg_ext.cost.measure import median_ratio, paired_times
from mmseg_ext.datasets.check.pairs import Pair, Part, Reading, Split, check_split
from mmseg_ext.datasets.labels import LabelRule

WIDTH, HEIGHT, CLASSES = 683, 512, 150
_REGIONS = 25
STOCK = {"CheckedLoadImage": "LoadImageFromFile", "CheckedLoadAnnotations": "LoadAnnotations"}


def make_pairs(folder: Path, count: int) -> list[tuple[str, str]]:
    """Write `count` images and label maps; paths of each."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.mgrid[:HEIGHT, :WIDTH], -1).reshape(-1, 1, 2).astype(np.float32)
    pairs = []
    for i in range(count):
        centres = rng.uniform((0, 0), (HEIGHT, WIDTH), (_REGIONS, 2)).astype(np.float32)
        region = np.square(grid - centres).sum(-1).argmin(1).reshape(HEIGHT, WIDTH)
        label = rng.integers(0, CLASSES + 1, _REGIONS, dtype=np.uint8)[region]
        colours = rng.uniform(30, 225, (_REGIONS, 3))[region]
        texture = cv2.GaussianBlur(rng.normal(0, 60, (HEIGHT, WIDTH, 3)), (0, 0), 1.2)
        image = np.clip(colours + texture, 0, 255).astype(np.uint8)
        paths = str(folder / f"{i}.jpg"), str(folder / f"{i}.png")
        cv2.imwrite(paths[0], image, [cv2.IMWRITE_JPEG_QUALITY, 92])
        cv2.imwrite(paths[1], label)
        pairs.append(paths)
    return pairs


def decode_bare(pairs: Sequence[tuple[str, str]]) -> None:
    """Read and decode the files as mmsegmentation's loaders do, and nothing else."""
    for image, mask in pairs:
        mmcv.imfrombytes(Path(image).read_bytes(), flag="color", backend="cv2")
        mmcv.imfrombytes(Path(mask).read_bytes(), flag="unchanged", backend="pillow")


def check_functions(pairs: Sequence[tuple[str, str]]) -> dict[str, Callable[[], object]]:
    rule = LabelRule(CLASSES, reduce_zero_label=True)
    classes = tuple(f"class {i}" for i in range(CLASSES))
    part = Part([Pair(*pair, rule) for pair in pairs], Reading(), classes, palette=[])

    def check() -> None:
        problems, _ = check_split(Split("train", [part]), workers=0)
        if problems:
            raise RuntimeError(f"the generated files have problems: {problems[0]}")

    return {"plain": lambda: decode_bare(pairs), "ours": check}


def pipeline_functions(
    config: Path, pairs: Sequence[tuple[str, str]]
) -> dict[str, Callable[[], object]]:
    checked = Config.fromfile(config).train_pipeline
    stock = [{**step, "type": STOCK.get(step["type"], step["type"])} for step in checked]
    for step in stock:
        step.pop("num_classes", None)

    def reader(steps: list[dict]) -> Callable[[], None]:
        pipeline = Compose([TRANSFORMS.build(step) for step in steps])

        def read() -> None:
            random.seed(0)
            np.random.seed(0)
            for image, mask in pairs:
                sample = {
                    "img_path": image,
                    "seg_map_path": mask,
                    "label_map": None,
                    "reduce_zero_label": True,
                    "num_classes": CLASSES,
                    "seg_fields": [],
                    "sample_idx": 0,
                }
                pipeline(sample)

        return read

    return {"plain": reader(stock), "ours": reader(checked)}


def metric_functions(images: int = 8) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEIGHT, WIDTH)
    samples = [
        {
            "pred_sem_seg": {"data": torch.randint(0, CLASSES, shape, generator=generator)},
            "gt_sem_seg": {"data": torch.randint(0, CLASSES, shape, generator=generator)},
        }
        for _ in range(images)
    ]

    def processor(kind: str) -> Callable[[], None]:
        metric = METRICS.build({"type": kind})
        metric.dataset_meta = {"classes": tuple(range(CLASSES))}

        def process() -> None:
            metric.results.clear()
            metric.process({}, samples)

        return process

    return {"plain": processor("IoUMetric"), "ours": processor("CheckedIoUMetric")}


def measure(functions: dict[str, Callable[[], object]], images: int, rounds: int) -> dict:
    """Milliseconds per image of both sides, and the median ratio of their times."""
    times = paired_times(functions, rounds=rounds)
    result = {name: 1e3 * statistics.median(times[name]) / images for name in functions}
    return result | {"ratio": median_ratio(times["ours"], times["plain"])}


def main(argv: Sequence[str] | None = None) -> int:
    """The command `benchmarks/data_checks.py`."""
    parser = argparse.ArgumentParser(
        prog="benchmark_data_checks.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        type=Path,
        nargs="?",
        default=Path("configs/_base_/datasets/ade20k.py"),
        help="whose train_pipeline is measured (default: %(default)s)",
    )
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the results as JSON")
    args = parser.parse_args(argv)
    cv2.setNumThreads(0)  # one worker process of a dataloader
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = make_pairs(Path(folder), args.pairs)
        sizes = [sum(Path(p).stat().st_size for p in column) for column in zip(*pairs, strict=True)]
        results = {
            "dataset check, bare decode": measure(check_functions(pairs), args.pairs, args.rounds),
            "training pipeline, stock": measure(
                pipeline_functions(args.config, pairs), args.pairs, args.rounds
            ),
            "IoU metric, stock": measure(metric_functions(), 8, args.rounds),
        }
    image, label = (size / args.pairs / 1024 for size in sizes)
    print(f"{args.pairs} pairs of {WIDTH}x{HEIGHT}, JPEG {image:.0f} KiB and PNG {label:.0f} KiB")
    print(f"{'ms per image':36}{'plain':>8}{'ours':>8}{'ours/plain':>12}{'ours/s':>8}")
    for name, row in results.items():
        print(
            f"{name:36}{row['plain']:8.2f}{row['ours']:8.2f}{row['ratio']:12.3f}"
            f"{1e3 / row['ours']:8.0f}"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
