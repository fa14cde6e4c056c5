"""The CamVid table: decode heads, backbones and EANet's ablations under one small budget.

    python -m benchmarks.camvid_table --seeds 3

trains what is missing, goes on with what was cut (any run can be killed at any time), and writes
docs/results/camvid.json, the tables of docs/camvid.md, which hold nothing else, and its figure. The
configs are `configs/*_camvid_8k.py`; the validation frames are scored with the last weights.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS, MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from benchmarks import docs_tables
from benchmarks.camvid_rows import GROUPS, RECIPE, Row, all_rows, rows_of
from benchmarks.receptive_field import effective_receptive_field, share_beyond
from mmseg_ext import register_all_modules
from mmseg_ext.atomic_write import write_text
from mmseg_ext.cost.contest import contest
from mmseg_ext.cost.model_cost import machine
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.engine.launch import build_train_runner, load_settings
from mmseg_ext.engine.load_trained import load_trained
from mmseg_ext.evaluation.checked_iou_metric import CheckedIoUMetric
from mmseg_ext.reports.panels import draw_panels

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/results/camvid.json"
FIGURE = ROOT / "docs/images/camvid_frames.png"
FRAME = (180, 240)  # height and width of the images that the models see in testing
FAR = 60  # pixels of such an image, a quarter of its width
PROBED = 16  # validation frames whose effective receptive fields are averaged
IGNORED = 255


# --- one run ------------------------------------------------------------------------------------


def settings(row: Row, seed: int, iterations: int) -> dict:
    """What a run changes in the row's config, as `--cfg-options` would."""
    workers = 4 if torch.cuda.is_available() else 0
    return {
        "train_cfg.max_iters": iterations,
        "train_cfg.val_interval": iterations,
        "val_cfg": None,  # scored once, after the training
        "val_dataloader": None,
        "val_evaluator": None,
        "param_scheduler.1.end": iterations,
        "default_hooks.checkpoint.interval": max(1, iterations // 5),
        "randomness.seed": seed,
        "train_dataloader.num_workers": workers,
        "train_dataloader.persistent_workers": workers > 0,
        **row.options,
    }


def run(row: Row, seed: int, iterations: int, folder: Path) -> dict:
    """The numbers of a run: read where they are there, else trained, or trained to the end."""
    result = folder / "result.json"
    if not result.is_file():
        config = train(row, seed, iterations, folder)
        model = weights_of(config, folder, iterations)
        numbers = {"row": row.name, "seed": seed, "iterations": iterations, **score(config, model)}
        numbers["far"] = far_part(config, model)
        write_text(json.dumps(numbers) + "\n", result)
    return json.loads(result.read_text())


def train(row: Row, seed: int, iterations: int, folder: Path) -> Config:
    """Train the row in `folder`, from its last checkpoint where there is one."""
    path = str(ROOT / "configs" / f"{row.config}.py")
    options = settings(row, seed, iterations)
    if not (folder / f"iter_{iterations}.pth").is_file():
        # mmengine keeps visualizers by name: each run needs its own, or it logs into the first's.
        own = {**options, "visualizer.name": f"{row.name}_{seed}_{iterations}"}
        build_train_runner(path, own, str(folder), resume=True).train()
    return load_settings(path, options, str(folder))


def weights_of(config: Config, folder: Path, iterations: int) -> nn.Module:
    """The segmentor with the run's last weights, for inference."""
    model, _ = load_trained(config, folder / f"iter_{iterations}.pth")
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


# --- its numbers --------------------------------------------------------------------------------


def predictions(model: nn.Module, dataset: BaseSegDataset) -> Iterator[SegDataSample]:
    """Each image's sample, prediction and truth, both at the size of the annotation."""
    for i in range(len(dataset)):
        yield model.test_step(pseudo_collate([dataset[i]]))[0]


def areas(model: nn.Module, dataset: BaseSegDataset) -> Tensor:
    """Pixels (frames, 4, classes) of intersection, union, prediction and truth."""
    classes = len(dataset.metainfo["classes"])
    rows = []
    for sample in predictions(model, dataset):
        maps = (sample.pred_sem_seg.data[0], sample.gt_sem_seg.data[0])
        maps = [m.cpu().long() for m in maps]
        counts = CheckedIoUMetric.intersect_and_union(*maps, classes, IGNORED).to_dense()
        hits, predicted, truth = counts.diag(), counts.sum(0), counts.sum(1)
        rows.append(torch.stack([hits, truth + predicted - hits, predicted, truth]).double())
    return torch.stack(rows)


def score(config: Config, model: nn.Module) -> dict:
    """mIoU, pixel accuracy and each class's IoU in percent, at one scale."""
    dataset = DATASETS.build(config.test_dataloader.dataset)
    intersection, union, _, truth = areas(model, dataset).sum(0)
    iou = 100 * intersection / union
    return {
        "miou": float(iou.mean()),
        "accuracy": float(100 * intersection.sum() / truth.sum()),
        "iou": dict(zip(dataset.metainfo["classes"], iou.tolist(), strict=True)),
    }


def score_views(config: Config, model: nn.Module) -> float:
    """mIoU in percent with the config's scales and flips."""
    views = {**config.test_dataloader.dataset, "pipeline": config.tta_pipeline}
    merged = MODELS.build({**config.tta_model, "module": model})
    intersection, union, *_ = areas(merged, DATASETS.build(views)).sum(0)
    return float(100 * (intersection / union).mean())


def far_part(config: Config, model: nn.Module) -> float:
    """Percent of the effective receptive field farther than `FAR` pixels from its middle."""
    dataset = DATASETS.build(config.test_dataloader.dataset)
    chosen = np.linspace(0, len(dataset) - 1, min(PROBED, len(dataset))).astype(int)
    batch = pseudo_collate([dataset[int(i)] for i in chosen])
    images = model.data_preprocessor(batch)["inputs"]  # (B, 3, h, w)

    def logits(x: Tensor) -> Tensor:
        scores = model(x)  # DANet's heads give a map for each of their branches, the sum first
        return scores[0] if isinstance(scores, (tuple, list)) else scores

    return 100 * share_beyond(effective_receptive_field(logits, images).cpu(), FAR)


def costs(rows: Sequence[Row], rounds: int) -> dict[str, dict]:
    """Parameters, multiply-adds of one frame, time and memory of a training iteration.

    The rows take turns, so that a drifting machine is fair to all.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps, table = {}, {}
    for row in rows:
        config = load_settings(str(ROOT / "configs" / f"{row.config}.py"), row.options)
        model = MODELS.build(config.model).to(device)
        counted = count_multiply_adds(model.eval(), torch.zeros(1, 3, *FRAME, device=device))
        table[row.name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "multiply_adds": counted.all,
        }
        wrapper = build_optim_wrapper(model, config.optim_wrapper)
        batch = _random_batch(config.train_dataloader.batch_size, config.crop_size)
        steps[row.name] = partial(model.train().train_step, batch, wrapper)
    for name, result in contest(steps, rounds, device).items():
        table[name] |= {"ms": result.ms, "mib": result.mib}
    return table


def _random_batch(size: int, crop: tuple[int, int]) -> dict:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 3, *crop), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 11, (size, 1, *crop), generator=generator)
    samples = [
        SegDataSample(gt_sem_seg=PixelData(data=y), metainfo={"img_shape": crop}) for y in labels
    ]
    return {"inputs": list(images), "data_samples": samples}


# --- the recorded numbers -----------------------------------------------------------------------


def folder_of(work_dir: Path, row: Row, seed: int, iterations: int) -> Path:
    return work_dir / str(iterations) / row.name / f"seed{seed}"


def jobs(groups: Sequence[str], seeds: int) -> list[tuple[Row, int]]:
    """All rows with the first seed, then the further ones, which the backbones do not get."""
    first = [(row, 0) for group in groups for row in rows_of(group)]
    repeated = [group for group in groups if group not in ("backbones", "recipe")]
    further = [(row, s) for s in range(1, seeds) for g in repeated for row in rows_of(g)]
    return first + further


def collect(work_dir: Path, iterations: int, rows: Sequence[Row]) -> list[dict]:
    """The runs of these rows that are finished."""
    runs = []
    for row in rows:
        for path in sorted((work_dir / str(iterations) / row.name).glob("seed*/result.json")):
            runs.append(json.loads(path.read_text()))
    return runs


# --- the figure ---------------------------------------------------------------------------------


def draw_frames(work_dir: Path, iterations: int, each: int = 3) -> None:
    """The frames where EANet is most ahead of FCN and most behind, as colour maps, by seed 0.

    CamVid's images are not ours to give away: only labels are drawn.
    """
    maps, ious = {}, {}
    for row in (r for r in GROUPS["heads"] if r.name in ("ea", "fcn")):
        folder = folder_of(work_dir, row, 0, iterations)
        config = load_settings(
            str(ROOT / "configs" / f"{row.config}.py"), settings(row, 0, iterations), str(folder)
        )
        dataset = DATASETS.build(config.test_dataloader.dataset)
        model = weights_of(config, folder, iterations)
        samples = list(predictions(model, dataset))
        maps[row.name] = [s.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8) for s in samples]
        truths = [s.gt_sem_seg.data[0].cpu().numpy().astype(np.uint8) for s in samples]
        ious[row.name] = [_frame_miou(p, t) for p, t in zip(maps[row.name], truths, strict=True)]
    order = np.argsort(np.subtract(ious["ea"], ious["fcn"]))
    chosen = [*order[::-1][:each], *order[:each]]
    shown = {"truth": [truths[i] for i in chosen]}
    for name, title in (("ea", "EANet"), ("fcn", "FCN")):
        shown[title] = [np.where(truths[i] == IGNORED, IGNORED, maps[name][i]) for i in chosen]
    shown["differing"] = [
        np.where(ea == fcn, IGNORED, ea)
        for ea, fcn in zip(shown["EANet"], shown["FCN"], strict=True)
    ]
    meta = dataset.metainfo
    draw_panels(shown, meta["classes"], meta["palette"], FIGURE)


def _frame_miou(prediction: np.ndarray, truth: np.ndarray) -> float:
    """Mean IoU of the classes that a frame shows."""
    known = truth != IGNORED
    present = np.unique(truth[known])
    overlaps = [(prediction == c) & (truth == c) for c in present]
    unions = [((prediction == c) | (truth == c)) & known for c in present]
    return float(np.mean([o.sum() / u.sum() for o, u in zip(overlaps, unions, strict=True)]))


# --- the command --------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    register_all_modules()
    record = {"recipe": [], "runs": [], "costs": {}}
    if RECORD.is_file():
        record = json.loads(RECORD.read_text())
    if not args.no_training:
        for row, seed in jobs(args.groups, args.seeds):
            folder = folder_of(args.work_dir, row, seed, args.iterations)
            numbers = run(row, seed, args.iterations, folder)
            print(f"{row.name}, seed {seed}: mIoU {numbers['miou']:.1f}", flush=True)
        for row, seed in jobs([g for g in args.groups if g == "heads"], args.seeds):
            add_views(row, seed, args.iterations, args.work_dir)
    write_record(record, args)
    trained = {(r["row"], r["seed"]) for r in record["runs"]}
    if "heads" in args.groups and {("ea", 0), ("fcn", 0)} <= trained:
        draw_frames(args.work_dir, args.iterations)
    return docs_tables.main([])


def add_views(row: Row, seed: int, iterations: int, work_dir: Path) -> None:
    """Score a finished run with scales and flips, unless that has been done."""
    folder = folder_of(work_dir, row, seed, iterations)
    numbers = json.loads((folder / "result.json").read_text())
    if "miou_views" not in numbers:
        config = train(row, seed, iterations, folder)
        numbers["miou_views"] = score_views(config, weights_of(config, folder, iterations))
        write_text(json.dumps(numbers) + "\n", folder / "result.json")


def write_record(record: dict, args: argparse.Namespace) -> None:
    """JSON of the runs that are there; costs are measured where they lack."""
    if "recipe" in args.groups:
        tried = {r["row"]: r for r in record["recipe"]}
        runs = collect(args.work_dir, args.iterations, RECIPE)
        tried |= {r["row"]: r for r in runs if r["seed"] == 0}
        record["recipe"] = list(tried.values())
    else:
        here = machine("cuda" if torch.cuda.is_available() else "cpu")
        known = record["costs"] if record.get("machine") == here else {}
        rows = [row for row in all_rows() if row.name not in known and args.rounds]
        record |= {
            "iterations": args.iterations,
            "machine": here,
            "runs": collect(args.work_dir, args.iterations, all_rows()),
            "costs": known | (costs(rows, args.rounds) if rows else {}),
        }
    write_text(json.dumps(record, indent=1) + "\n", RECORD)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each row (3)")
    parser.add_argument("--iterations", type=int, default=8000, help="of each training (8000)")
    parser.add_argument("--groups", nargs="+", choices=[*GROUPS, "recipe"], default=list(GROUPS))
    parser.add_argument(
        "--rounds",
        type=int,
        default=15,
        help="of the measured iterations (15); 0: none is measured",
    )
    parser.add_argument("--no-training", action="store_true", help="only write what is finished")
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/camvid_table"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
