"""Train a small Mask R-CNN with RMT on the embedded scenes, draw what it finds: `make demo-det`."""

import contextlib
import io
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from mmcv.image import imread
from mmengine.dataset import pseudo_collate
from mmengine.runner import Runner
from mmengine.structures import InstanceData

from mmseg_ext.commands import exit_on_error
from mmseg_ext.commands._flags import demo_det as parser
from mmseg_ext.commands._launch import exit_on_run_error
from mmseg_ext.commands._short_run import ProgressLine, data_root_options, log_to_file_only
from mmseg_ext.datasets.shapes import Recipe
from mmseg_ext.detection.shapes_coco import annotation_file
from mmseg_ext.engine.launch import build_train_runner
from mmseg_ext.environment import configs_folder
from mmseg_ext.reports.pictures import draw_panels

CONFIG = str(configs_folder() / "detection/mask_rcnn_rmt_shapes.py")
REQUIRED_AP = {"bbox": 0.40, "segm": 0.25}
SHOWN = 6
_SPLITS = ("train", "val", "test")
SCORE = 0.5  # detections below it are not drawn


def demo(
    work_dir: Path,
    data_root: Path,
    resume: bool = False,
    options: dict | None = None,
    recipe: Recipe = Recipe(),  # noqa: B008
) -> bool:
    """Train, evaluate and draw into `work_dir`; True if both AP reach `REQUIRED_AP`."""
    print("mmseg_ext demo: Mask R-CNN with RMT on the embedded scenes", flush=True)
    with log_to_file_only():
        warnings.filterwarnings(
            "ignore", message="mmseg_ext.detection.operators_in_pytorch stands in"
        )
        options = {**data_options(data_root, recipe), **(options or {})}
        runner = build_train_runner(CONFIG, options, str(work_dir), resume=resume)
    runner.register_hook(ProgressLine())
    start = time.perf_counter()
    runner.train()
    seconds = time.perf_counter() - start
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools' own tables
        scores = runner.val_loop.run()
    # mmdetection gives no score where nothing is found.
    reached = {kind: scores.get(f"coco/{kind}_mAP", 0.0) for kind in REQUIRED_AP}
    picture = work_dir / "detections.png"
    draw_detections(runner, picture)
    print(
        f"\naverage precision on the {len(runner.val_dataloader.dataset)} validation scenes, the "
        "mean over IoU 0.50 to 0.95 and 5 classes:\n"
        f"  box {reached['bbox']:.3f}  mask {reached['segm']:.3f}\n"
        f"{runner.max_iters} iterations in {seconds:.0f} s, {torch.get_num_threads()} threads\n"
        f"picture: {picture}\n"
        f"log:     {Path(runner.log_dir) / f'{runner.timestamp}.log'}"
    )
    missed = [kind for kind, least in REQUIRED_AP.items() if reached[kind] < least]
    for kind in missed:
        print(f"FAILED: {kind} AP {reached[kind]:.3f} is below {REQUIRED_AP[kind]:.2f}")
    return not missed


def data_options(data_root: Path, recipe: Recipe) -> dict:
    """Config options that put the data of all splits at `data_root`, and make them by `recipe`."""
    options = data_root_options(f"{data_root}/")
    validation = str(annotation_file(data_root, "val"))
    options |= {f"{loader}_dataloader.dataset.recipe": asdict(recipe) for loader in _SPLITS}
    return options | {f"{split}_evaluator.ann_file": validation for split in _SPLITS[1:]}


def draw_detections(runner: Runner, path: Path) -> None:
    """The first validation images with their true and their detected objects."""
    dataset, palette = runner.val_dataloader.dataset, runner.val_dataloader.dataset.metainfo
    samples = [dataset[i] for i in range(SHOWN)]
    with torch.no_grad():
        found = runner.model.eval().val_step(pseudo_collate(samples))
    rows: dict[str, list[np.ndarray]] = {"image": [], "truth": [], "detected": []}
    for sample, result in zip(samples, found, strict=True):
        image = imread(sample["data_samples"].img_path, channel_order="rgb")
        detected = result.pred_instances[result.pred_instances.scores >= SCORE]
        rows["image"].append(image)
        rows["truth"].append(painted(image, sample["data_samples"].gt_instances, palette))
        rows["detected"].append(painted(image, detected, palette))
    draw_panels(rows, palette["classes"], palette["palette"], path)


def painted(image: np.ndarray, objects: InstanceData, metainfo: dict) -> np.ndarray:
    """An image (H, W, 3) uint8 in grey, with masks and boxes of objects in colour."""
    canvas = np.repeat(0.55 * image.mean(-1, keepdims=True) + 60, 3, -1)
    boxes = getattr(objects.bboxes, "tensor", objects.bboxes).round().int().tolist()
    masks = getattr(objects.masks, "masks", objects.masks)
    limit = np.array(image.shape[1::-1] * 2) - 1
    for box, mask, label in zip(boxes, masks, objects.labels.tolist(), strict=True):
        colour = np.array(metainfo["palette"][label], float)
        inside = np.asarray(mask, bool)
        canvas[inside] = 0.35 * canvas[inside] + 0.65 * colour
        left, top, right, bottom = np.clip(box, 0, limit)
        canvas[[top, bottom], left : right + 1] = colour
        canvas[top : bottom + 1, [left, right]] = colour
    return canvas.astype(np.uint8)


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    with exit_on_run_error():
        return int(not demo(args.work_dir, args.data_root, args.resume))
