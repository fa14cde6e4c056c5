"""The demos: train from scratch, test and draw, with lines of progress instead of the full log.

mmengine's complete log is in the work directory.
"""

import contextlib
import io
import itertools
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from mmcv.image import imread
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmseg_ext.atomic_write import write_text
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.datasets.dataset_report import SPLITS
from mmseg_ext.datasets.shapes import Recipe
from mmseg_ext.detection.shapes_coco import annotation_file
from mmseg_ext.engine.launch import build_test_runner, build_train_runner
from mmseg_ext.paths import configs_folder
from mmseg_ext.reports.page import write_report

_SHOWN = ("mIoU", "coco/bbox_mAP", "coco/segm_mAP")
_run_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """A finished run. mIoU is in [0, 1], over all classes including the background."""

    miou: float
    miou_tta: float
    parameters: int
    iterations: int
    seconds: float  # of the training loop, validations included


class ProgressLine(Hook):
    """A line on standard output every 100 iterations, and the metrics of each validation."""

    priority = "LOW"
    interval = 100

    def before_train(self, runner: Runner) -> None:
        self.start, self.first = time.perf_counter(), runner.iter

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None):
        done, total = runner.iter + 1, runner.max_iters
        if done % self.interval and done != total:
            return
        loss = runner.message_hub.get_scalar("train/loss").mean(self.interval)
        speed = (done - self.first) / (time.perf_counter() - self.start)
        left = round((total - done) / speed)
        print(
            f"  iteration {done:>5}/{total}  loss {loss:.3f}  {speed:4.1f} it/s  "
            f"ETA {left // 60}:{left % 60:02d}",
            flush=True,
        )

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        shown = ", ".join(f"{key} {metrics[key]:g}" for key in _SHOWN if key in metrics)
        print(f"  validation: {shown}")


def train(
    config: str, work_dir: Path, options: dict | None = None, resume: bool = False
) -> tuple[Runner, float]:
    """Train `config` in `work_dir`; return the runner and the seconds of the training loop."""
    with _log_to_file_only(options) as options:
        runner = build_train_runner(config, options, str(work_dir), resume=resume)
    runner.register_hook(ProgressLine())
    start = time.perf_counter()
    runner.train()
    return runner, time.perf_counter() - start


def train_and_test(config: str, work_dir: Path, options: dict | None = None) -> Outcome:
    """Train `config` in `work_dir`, and test its last weights with and without `--tta`.

    `options` are merged into the config like `--cfg-options`.
    """
    runner, seconds = train(config, work_dir, options)
    checkpoint = work_dir / f"iter_{runner.max_iters}.pth"
    miou = []
    for tta in (False, True):
        print(f"  testing, {'multi-scale and flip' if tta else 'single scale'}", flush=True)
        with _log_to_file_only(options) as own:
            tester = build_test_runner(config, str(checkpoint), own, str(work_dir), tta=tta)
            miou.append(float(tester.test()["mIoU"]) / 100)
    return Outcome(
        *miou,
        parameters=sum(p.numel() for p in runner.model.parameters()),
        iterations=runner.max_iters,
        seconds=seconds,
    )


@contextlib.contextmanager
def _log_to_file_only(options: dict | None):
    """Yield `options` for a Runner that is built inside; the console does not show its log."""
    # mmengine's console handler keeps the standard output of the time at which it was created.
    warnings.filterwarnings("ignore", category=UserWarning, module="mm(cv|seg|det|engine)")
    warnings.filterwarnings("ignore", message="mmseg_ext.detection.operators_in_pytorch replaces")
    # mmengine keeps visualizers by name. With the config's name, a second run in this process would
    # write its scalars to the folder of the first run.
    name = f"short_run_{next(_run_numbers)}"
    with contextlib.redirect_stdout(io.StringIO()):
        yield {**(options or {}), "visualizer.name": name}


def data_root_options(data_root: str) -> dict:
    """Return config options with this `data_root` for all splits."""
    return {f"{split}_dataloader.dataset.data_root": data_root for split in SPLITS}


# --- segmentation

DEMO_CONFIG = str(configs_folder() / "ea_r18_shapes.py")
COMPARED = {
    "EANet": DEMO_CONFIG,
    "FCN": str(configs_folder() / "fcn_r18_shapes.py"),
    "DANet": str(configs_folder() / "danet_r18_shapes.py"),
}
REQUIRED_MIOU = 0.70


def segmentation_demo(
    work_dir: Path, options: dict | None = None, required: float = REQUIRED_MIOU
) -> bool:
    """Train, test and report in `work_dir`; return whether the mIoU reaches `required`."""
    print("mmseg_ext demo: EANet on the embedded dataset ShapesDataset", flush=True)
    outcome = train_and_test(DEMO_CONFIG, work_dir, options)
    report = work_dir / "report.html"
    write_report([work_dir], report)
    print(
        "\nmIoU on the validation scenes, over all classes including the background:\n"
        f"  EANet, single scale             {outcome.miou:.3f}\n"
        f"  EANet, multi-scale and flip     {outcome.miou_tta:.3f}\n"
        f"{outcome.iterations} iterations in {outcome.seconds:.0f} s, "
        f"{torch.get_num_threads()} threads\n"
        f"curves and predictions: {report}"
    )
    if outcome.miou < required:
        print(f"FAILED: mIoU {outcome.miou:.3f} is below {required:.2f}")
    return outcome.miou >= required


def compare_heads(work_dir: Path, options: dict | None = None) -> None:
    """Train each config of `COMPARED` equally long; write a table and one report."""
    outcomes = {}
    for name, config in COMPARED.items():
        print(f"{name} ({config})", flush=True)
        outcomes[name] = train_and_test(config, work_dir / name.lower(), options)
    headings = ["model", "mIoU", "mIoU, ms + flip", "parameters", "iterations", "training, s"]
    rows = []
    for name, o in sorted(outcomes.items(), key=lambda item: -item[1].miou):
        scores = [f"{o.miou:.3f}", f"{o.miou_tta:.3f}", f"{o.parameters / 1e6:.2f} M"]
        rows.append([name, *scores, str(o.iterations), f"{o.seconds:.0f}"])
    table = markdown(headings, rows)
    write_text(table, work_dir / "compare.md")
    write_report([work_dir / name.lower() for name in outcomes], work_dir / "report.html")
    print(f"\n{table}\n{work_dir}/compare.md, report.html")


# --- detection

DETECTION_CONFIG = str(configs_folder() / "detection/mask_rcnn_rmt_shapes.py")
REQUIRED_AP = {"bbox": 0.40, "segm": 0.25}
SHOWN_DETECTIONS = 6
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
    options = {**data_options(data_root, recipe), **(options or {})}
    runner, seconds = train(DETECTION_CONFIG, work_dir, options, resume)
    with contextlib.redirect_stdout(io.StringIO()):  # of pycocotools
        scores = runner.val_loop.run()
    # mmdetection returns no score if nothing is detected.
    reached = {kind: scores.get(f"coco/{kind}_mAP", 0.0) for kind in REQUIRED_AP}
    pictures = work_dir / "detections"
    draw_detections(runner, pictures)
    print(
        f"\naverage precision on the {len(runner.val_dataloader.dataset)} validation scenes, the "
        "mean over IoU 0.50 to 0.95 and 5 classes:\n"
        f"  box {reached['bbox']:.3f}  mask {reached['segm']:.3f}\n"
        f"{runner.max_iters} iterations in {seconds:.0f} s, {torch.get_num_threads()} threads\n"
        f"pictures: {pictures}"
    )
    missed = [kind for kind, least in REQUIRED_AP.items() if reached[kind] < least]
    for kind in missed:
        print(f"FAILED: {kind} AP {reached[kind]:.3f} is below {REQUIRED_AP[kind]:.2f}")
    return not missed


def data_options(data_root: Path, recipe: Recipe) -> dict:
    """Return config options that generate all splits in `data_root` by `recipe`."""
    options = data_root_options(f"{data_root}/")
    validation = str(annotation_file(data_root, "val"))
    options |= {f"{split}_dataloader.dataset.recipe": asdict(recipe) for split in SPLITS}
    return options | {f"{split}_evaluator.ann_file": validation for split in SPLITS[1:]}


def draw_detections(runner: Runner, folder: Path) -> None:
    """Draw the first validation images twice: with their labeled and their detected objects."""
    dataset = runner.val_dataloader.dataset
    palette = [tuple(color) for color in dataset.metainfo["palette"]]
    runner.visualizer.dataset_meta = {**dataset.metainfo, "palette": palette}
    samples = [dataset[i] for i in range(SHOWN_DETECTIONS)]
    with torch.no_grad():
        found = runner.model.eval().val_step(pseudo_collate(samples))
    for i, result in enumerate(found):
        image = imread(result.img_path, channel_order="rgb")
        file = str(folder / f"{i}.png")
        runner.visualizer.add_datasample("", image, result, pred_score_thr=SCORE, out_file=file)
