"""The demos: train from scratch, test and draw, with a line of progress instead of the full log.

mmengine's complete log is in the work directory.
"""

import contextlib
import io
import itertools
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from mmcv.image import imread
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from mmseg.apis import inference_model
from mmseg.registry import DATASETS

from mmseg_ext.atomic_write import save_figure, write_text
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.datasets.shapes import Recipe
from mmseg_ext.detection.shapes_coco import annotation_file
from mmseg_ext.engine.launch import build_test_runner, build_train_runner, load_settings
from mmseg_ext.inference.models import get_model
from mmseg_ext.paths import configs_folder
from mmseg_ext.reports.curves import Curve, curves_figure, read_scalars
from mmseg_ext.reports.page import write_report
from mmseg_ext.reports.pictures import draw_panels

_SHOWN = ("mIoU", "coco/bbox_mAP", "coco/segm_mAP")
_run_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """A finished run. mIoU is in [0, 1], over all classes including the background."""

    config: str
    miou: float
    miou_tta: float
    parameters: int
    iterations: int
    seconds: float  # of the training loop, validations included
    curves: dict[str, Curve]
    log: Path
    checkpoint: Path


class ProgressLine(Hook):
    """A progress line on standard output, and the metrics of each validation.

    On a terminal the line is overwritten; else a new one is printed every `interval` iterations.
    """

    priority = "LOW"

    def __init__(self, interval: int = 100):
        self.interval = interval
        self.on_terminal = sys.stdout.isatty()

    def before_train(self, runner: Runner) -> None:
        self.start, self.first = time.perf_counter(), runner.iter
        self.loss = None

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None):
        loss = float(outputs["loss"])
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        done, total = runner.iter + 1, runner.max_iters
        if done % (10 if self.on_terminal else self.interval) and done != total:
            return
        speed = (done - self.first) / (time.perf_counter() - self.start)
        left = round((total - done) / speed)
        line = (
            f"  iteration {done:>5}/{total}  loss {self.loss:.3f}  "
            f"{speed:4.1f} it/s  ETA {left // 60}:{left % 60:02d}"
        )
        print(f"\r{line}" if self.on_terminal else line, end="" if self.on_terminal else "\n")
        sys.stdout.flush()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        shown = ", ".join(f"{key} {metrics[key]:g}" for key in _SHOWN if key in metrics)
        print(f"{chr(10) if self.on_terminal else ''}  validation: {shown}")


def train_and_test(config: str, work_dir: Path, options: dict | None = None) -> Outcome:
    """Train `config` in `work_dir`, and test its last weights with and without `--tta`.

    `options` are merged into the config like `--cfg-options`.
    """
    with log_to_file_only():
        runner = build_train_runner(config, _own_visualizer(options), str(work_dir))
    runner.register_hook(ProgressLine())
    start = time.perf_counter()
    runner.train()
    seconds = time.perf_counter() - start
    checkpoint = work_dir / f"iter_{runner.max_iters}.pth"
    miou, miou_tta = (_test(config, checkpoint, options, tta) for tta in (False, True))
    return Outcome(
        config=config,
        miou=miou,
        miou_tta=miou_tta,
        parameters=sum(p.numel() for p in runner.model.parameters()),
        iterations=runner.max_iters,
        seconds=seconds,
        curves=read_scalars(Path(runner.log_dir, "vis_data/scalars.json").read_text())[0],
        log=Path(runner.log_dir) / f"{runner.timestamp}.log",
        checkpoint=checkpoint,
    )


def _test(config: str, checkpoint: Path, options: dict | None, tta: bool) -> float:
    """Return the mIoU in [0, 1] of a checkpoint, as `tools/test.py [--tta]` measures it."""
    print(f"  testing, {'multi-scale and flip' if tta else 'single scale'}", flush=True)
    folder, options = str(checkpoint.parent), _own_visualizer(options)
    with log_to_file_only():
        metrics = build_test_runner(config, str(checkpoint), options, folder, tta=tta).test()
    return float(metrics["mIoU"]) / 100


def _own_visualizer(options: dict | None) -> dict:
    """Return the options with a unique name for the visualizer.

    mmengine keeps visualizers by name. With the config's name, a second run in this process would
    write its scalars to the folder of the first run.
    """
    return {**(options or {}), "visualizer.name": f"short_run_{next(_run_numbers)}"}


def data_root_options(data_root: str) -> dict:
    """Return config options with this `data_root` for all splits."""
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    return {f"{loader}.dataset.data_root": data_root for loader in loaders}


@contextlib.contextmanager
def log_to_file_only():
    """Keep the log of Runners that are built inside out of the console.

    mmengine's console handler keeps the standard output of the time at which it was created.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module="mm(cv|seg|det|engine)")
    with contextlib.redirect_stdout(io.StringIO()):
        yield


# --- segmentation

DEMO_CONFIG = str(configs_folder() / "ea_r18_shapes.py")
COMPARED = {
    "EANet": DEMO_CONFIG,
    "FCN": str(configs_folder() / "fcn_r18_shapes.py"),
    "DANet": str(configs_folder() / "danet_r18_shapes.py"),
}
REQUIRED_MIOU = 0.70
SHOWN_SCENES = 8


def segmentation_demo(
    work_dir: Path, options: dict | None = None, required: float = REQUIRED_MIOU
) -> bool:
    """Train, test, draw and report in `work_dir`; return whether the mIoU reaches `required`."""
    print("mmseg_ext demo: EANet on the embedded dataset ShapesDataset", flush=True)
    outcome = train_and_test(DEMO_CONFIG, work_dir, options)
    curves, panels = work_dir / "curves.png", work_dir / "predictions.png"
    save_figure(curves_figure({"EANet": outcome.curves}), curves, 130)
    draw_predictions(outcome, options, panels)
    report = work_dir / "report.html"
    write_report([work_dir], report)
    print(
        "\nmIoU on the validation scenes, over all classes including the background:\n"
        f"  EANet, single scale             {outcome.miou:.3f}\n"
        f"  EANet, multi-scale and flip     {outcome.miou_tta:.3f}\n"
        f"{outcome.iterations} iterations in {outcome.seconds:.0f} s, "
        f"{torch.get_num_threads()} threads\n"
        f"pictures: {panels}  {curves}\n"
        f"log:      {outcome.log}\n"
        f"report:   {report}"
    )
    if outcome.miou < required:
        print(f"FAILED: mIoU {outcome.miou:.3f} is below {required:.2f}")
    return outcome.miou >= required


def draw_predictions(outcome: Outcome, options: dict | None, path: Path) -> None:
    """Draw the first validation images with their labels and the single-scale predictions."""
    settings = load_settings(outcome.config, options)
    scenes = DATASETS.build({**settings.val_dataloader.dataset, "pipeline": []})
    infos = [scenes.get_data_info(i) for i in range(min(SHOWN_SCENES, len(scenes)))]
    with contextlib.redirect_stdout(io.StringIO()):  # the loader's lines
        model = get_model(settings, weights=outcome.checkpoint)
    found = [inference_model(model, info["img_path"]).pred_sem_seg.data[0] for info in infos]
    rows = {
        "image": [imread(info["img_path"], channel_order="rgb") for info in infos],
        "truth": [imread(info["seg_map_path"], "unchanged", backend="pillow") for info in infos],
        "prediction": [labels.cpu().numpy() for labels in found],
    }
    draw_panels(rows, scenes.metainfo["classes"], scenes.metainfo["palette"], path)


def compare_heads(work_dir: Path, options: dict | None = None) -> None:
    """Train each config of `COMPARED` equally long; write a table, curves and one report."""
    outcomes = {}
    for name, config in COMPARED.items():
        print(f"{name} ({config})", flush=True)
        outcomes[name] = train_and_test(config, work_dir / name.lower(), options)
    table = comparison_table(outcomes)
    write_text(table, work_dir / "compare.md")
    figure = curves_figure({name: outcome.curves for name, outcome in outcomes.items()})
    save_figure(figure, work_dir / "curves.png", 130)
    write_report([o.checkpoint.parent for o in outcomes.values()], work_dir / "report.html")
    print(f"\n{table}\n{work_dir}/compare.md, curves.png, report.html")


def comparison_table(outcomes: dict[str, Outcome]) -> str:
    """Return the outcomes as a Markdown table, the best single-scale mIoU first."""
    ranked = sorted(outcomes.items(), key=lambda item: -item[1].miou)
    headings = ["model", "mIoU", "mIoU, ms + flip", "parameters", "iterations", "training, s"]
    rows = []
    for name, o in ranked:
        scores = [f"{o.miou:.3f}", f"{o.miou_tta:.3f}", f"{o.parameters / 1e6:.2f} M"]
        rows.append([name, *scores, str(o.iterations), f"{o.seconds:.0f}"])
    return markdown(headings, rows)


# --- detection

DETECTION_CONFIG = str(configs_folder() / "detection/mask_rcnn_rmt_shapes.py")
REQUIRED_AP = {"bbox": 0.40, "segm": 0.25}
SHOWN_DETECTIONS = 6
_SPLITS = ("train", "val", "test")
SCORE = 0.5  # detections below it are not drawn


def detection_demo(
    work_dir: Path,
    data_root: Path,
    resume: bool = False,
    options: dict | None = None,
    recipe: Recipe = Recipe(),  # noqa: B008
) -> bool:
    """Train, evaluate and draw in `work_dir`; return whether both AP reach `REQUIRED_AP`."""
    print("mmseg_ext demo: Mask R-CNN with RMT on the embedded scenes", flush=True)
    with log_to_file_only():
        warnings.filterwarnings(
            "ignore", message="mmseg_ext.detection.operators_in_pytorch replaces"
        )
        options = {**data_options(data_root, recipe), **(options or {})}
        runner = build_train_runner(DETECTION_CONFIG, options, str(work_dir), resume=resume)
    runner.register_hook(ProgressLine())
    start = time.perf_counter()
    runner.train()
    seconds = time.perf_counter() - start
    with contextlib.redirect_stdout(io.StringIO()):  # of pycocotools
        scores = runner.val_loop.run()
    # mmdetection returns no score if nothing is detected.
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
    """Return config options that generate all splits in `data_root` by `recipe`."""
    options = data_root_options(f"{data_root}/")
    validation = str(annotation_file(data_root, "val"))
    options |= {f"{loader}_dataloader.dataset.recipe": asdict(recipe) for loader in _SPLITS}
    return options | {f"{split}_evaluator.ann_file": validation for split in _SPLITS[1:]}


def draw_detections(runner: Runner, path: Path) -> None:
    """Draw the first validation images with their labeled and their detected objects."""
    dataset, palette = runner.val_dataloader.dataset, runner.val_dataloader.dataset.metainfo
    samples = [dataset[i] for i in range(SHOWN_DETECTIONS)]
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
    """Return the image (H, W, 3) uint8 in gray, with masks and boxes of the objects in color."""
    canvas = np.repeat(0.55 * image.mean(-1, keepdims=True) + 60, 3, -1)
    boxes = getattr(objects.bboxes, "tensor", objects.bboxes).round().int().tolist()
    masks = getattr(objects.masks, "masks", objects.masks)
    limit = np.array(image.shape[1::-1] * 2) - 1
    for box, mask, label in zip(boxes, masks, objects.labels.tolist(), strict=True):
        color = np.array(metainfo["palette"][label], float)
        inside = np.asarray(mask, bool)
        canvas[inside] = 0.35 * canvas[inside] + 0.65 * color
        left, top, right, bottom = np.clip(box, 0, limit)
        canvas[[top, bottom], left : right + 1] = color
        canvas[top : bottom + 1, [left, right]] = color
    return canvas.astype(np.uint8)
