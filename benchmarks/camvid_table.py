"""Train the CamVid tables: decode heads, backbones and EANet's ablations with one small budget.

    python -m benchmarks.camvid_table --seeds 3
    python -m benchmarks.camvid_table camvid_imagenet --iterations 400 --jobs 6   # on a GPU

The first study trains from scratch, the second one heads on ImageNet features. The script trains
missing runs and resumes interrupted ones, so it can be killed at any time. It writes
docs/results/STUDY.json and the tables of docs/camvid.md. The last weights are scored on the
validation frames.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from mmseg.registry import MODELS
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from benchmarks import docs_tables
from benchmarks.camvid_rows import STUDIES, Row, Study
from benchmarks.tables import compare_times, machine
from benchmarks.training_step import batch_of
from mmseg_ext import register_all_modules
from mmseg_ext.atomic_write import write_text
from mmseg_ext.cost.model_cost import count_multiply_adds
from mmseg_ext.engine.build import build_test_runner, build_train_runner
from mmseg_ext.engine.config import load_config
from mmseg_ext.reports.scores import class_scores

ROOT = Path(__file__).resolve().parents[1]
PROBED = 16  # validation frames whose effective receptive fields are averaged
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS = 2 if DEVICE == "cuda" else 0


def config_path(row: Row) -> str:
    return str(ROOT / "benchmarks/camvid" / f"{row.config}.py")


def settings(row: Row, seed: int, iterations: int) -> dict:
    """Return the options of a run, in the form of `--cfg-options`."""
    return {
        "train_cfg.max_iters": iterations,
        "train_cfg.val_interval": iterations,
        # Scored once, after the training.
        **dict.fromkeys(("val_cfg", "val_dataloader", "val_evaluator")),
        "param_scheduler.1.end": iterations,
        "default_hooks.checkpoint.interval": max(1, iterations // 5),
        "randomness.seed": seed,
        "train_dataloader.num_workers": WORKERS,
        "train_dataloader.persistent_workers": WORKERS > 0,
        # mmengine keeps visualizers by name. With one name all runs would log into the first one.
        "visualizer.name": f"{row.name}_{seed}_{iterations}",
        **row.options,
    }


def run(row: Row, seed: int, iterations: int, folder: Path, far: int) -> dict:
    """Return the numbers of a run; train or resume it first if there is no result yet."""
    result, weights = folder / "result.json", folder / f"iter_{iterations}.pth"
    if not result.is_file():
        options = settings(row, seed, iterations)
        if not weights.is_file():
            build_train_runner(config_path(row), options, str(folder), resume=True).train()
        numbers = {"row": row.name, "seed": seed, "iterations": iterations}
        write_text(json.dumps(numbers | score(row, weights, options, far)) + "\n", result)
    return json.loads(result.read_text())


def score(row: Row, weights: Path, options: dict, far: int) -> dict:
    """Return mIoU, pixel accuracy, the IoU of each class and the far part, all in percent."""
    runner, counts = test(row, weights, options)
    dataset, iou = runner.test_dataloader.dataset, 100 * class_scores(counts)["IoU"]
    numbers = {
        "miou": float(iou.mean()),
        "accuracy": float(100 * counts.trace() / counts.sum()),
        "iou": dict(zip(dataset.metainfo["classes"], iou.tolist(), strict=True)),
        "far": far_part(runner.model, dataset, far),
    }
    if row.is_head:  # with the config's scales and flips, too
        _, counts = test(row, weights, options, tta=True)
        numbers["miou_views"] = float(100 * class_scores(counts)["IoU"].mean())
    return numbers


def test(row: Row, weights: Path, options: dict, tta: bool = False) -> tuple[Runner, np.ndarray]:
    """Test weights; return the runner, and the pixels by true and predicted class."""
    folder = str(weights.parent / "test")
    runner = build_test_runner(config_path(row), str(weights), options, folder, tta=tta)
    runner.test()
    return runner, runner.test_evaluator.metrics[0].confusion.numpy()


def far_part(model: nn.Module, dataset: BaseSegDataset, far: int) -> float:
    """Return the percentage of the effective receptive field beyond `far` pixels."""
    chosen = np.linspace(0, len(dataset) - 1, min(PROBED, len(dataset))).astype(int)
    batch = pseudo_collate([dataset[int(i)] for i in chosen])
    images = model.data_preprocessor(batch)["inputs"]  # (B, 3, h, w)
    # DANet's heads give a map for each of their branches, the sum first.
    field = effective_receptive_field(lambda x: tree_flatten(model(x))[0][0], images)
    return 100 * share_beyond(field.cpu(), far)


def effective_receptive_field(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean |gradient| of the middle output with respect to each pixel, (H, W).

    This is the effective receptive field of Luo et al. (arXiv 1701.04128): how much a prediction
    depends on distant pixels. The values sum to one. `model` maps images (B, C, H, W) to (B, K, h,
    w). The K outputs are weighted by random signs for each image, otherwise their gradients could
    cancel.
    """
    generator, fields = torch.Generator().manual_seed(0), []
    for image in images:  # all at once would need the memory of a training step of 16 frames
        image = image[None].detach().requires_grad_()
        output = model(image)
        middle = output[:, :, output.shape[2] // 2, output.shape[3] // 2]  # (1, K)
        signs = torch.randint(0, 2, middle.shape, generator=generator).to(middle) * 2 - 1
        (gradient,) = torch.autograd.grad((middle * signs).sum(), image)
        sizes = gradient.abs().sum(1)  # (1, H, W)
        fields.append(sizes / sizes.sum())
    return torch.cat(fields).mean(0)


def share_beyond(field: Tensor, radius: float) -> float:
    """Return the share of a map (H, W) farther than `radius` pixels from its middle."""
    rows, columns = (torch.arange(n) - n // 2 for n in field.shape)
    far = torch.hypot(rows[:, None].float(), columns[None].float()) > radius
    return float(field[far].sum() / field.sum())


def costs(study: Study, rounds: int) -> dict[str, dict]:
    """Measure parameters, multiply-adds of a frame, and time and memory of a training iteration.

    The rows take turns, so changes of the machine's speed affect all rows.
    """
    steps, table = {}, {}
    for row in study.rows():
        config = load_config(config_path(row), row.options)
        model = MODELS.build(config.model).to(DEVICE)
        counted = count_multiply_adds(model.eval(), torch.zeros(1, 3, *study.frame, device=DEVICE))
        parameters = sum(p.numel() for p in model.parameters())
        table[row.name] = {"parameters": parameters, "multiply_adds": counted.all}
        wrapper = build_optim_wrapper(model, config.optim_wrapper)
        batch = batch_of(config, torch.device("cpu"))
        for image in batch["inputs"]:
            image.random_(256)
        steps[row.name] = partial(model.train().train_step, batch, wrapper)
    for name, result in compare_times(steps, rounds, DEVICE).items():
        table[name] |= {"ms": result.ms, "mib": result.mib}
    return table


def train_all(study: Study, seeds: int, iterations: int, work_dir: Path, jobs: int) -> None:
    """Run each row with each seed, `jobs` at a time; backbones have one seed."""
    todo = [
        (row, seed, iterations, work_dir / row.name / f"seed{seed}", study.far)
        for seed in range(seeds)
        for row in study.rows()
        if seed == 0 or row not in study.groups.get("backbones", ())
    ]
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(jobs, spawn, register_all_modules) as pool:
        for done in as_completed([pool.submit(run, *job) for job in todo]):
            numbers = done.result()
            print(
                f"{numbers['row']}, seed {numbers['seed']}: mIoU {numbers['miou']:.1f}", flush=True
            )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("study", nargs="?", choices=STUDIES, default="camvid")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each row (3)")
    parser.add_argument("--iterations", type=int, default=800, help="of each training (800)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (1)")
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs"))
    args = parser.parse_args(argv)
    register_all_modules()
    study, record_file = STUDIES[args.study], ROOT / f"docs/results/{args.study}.json"
    work_dir = args.work_dir / f"{args.study}_table" / str(args.iterations)
    train_all(study, args.seeds, args.iterations, work_dir, args.jobs)
    folders = [work_dir / row.name for row in study.rows()]
    results = [path for folder in folders for path in sorted(folder.glob("seed*/result.json"))]
    record = json.loads(record_file.read_text()) if record_file.is_file() else {}
    record |= {
        "iterations": args.iterations,
        "machine": machine(DEVICE),
        "runs": [json.loads(path.read_text()) for path in results],
        "costs": costs(study, rounds=15),
    }
    write_text(json.dumps(record, indent=1) + "\n", record_file)
    docs_tables.main([])


if __name__ == "__main__":
    main()
