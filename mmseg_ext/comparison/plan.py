"""The plan of a comparison: configs x data sets x rates x seeds become runs in one folder.

The folder has a resolved config for each model and data set, and `plan.json` with what was measured
before the first training. Both are written once, so a comparison that is killed and started again
trains the same.

    OUT/plan.json
    OUT/configs/DATA/MODEL.py
    OUT/runs/DATA/MODEL/seed0/            the training, in test/ and tta/ its tests
    OUT/runs/DATA/MODEL/rate0.25_seed0/   with a quarter of the learning rate
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmseg_ext.atomic_write import write_text
from mmseg_ext.comparison.timing import Cost
from mmseg_ext.engine.config import (
    as_list,
    classes_and_palette,
    crop_size,
    inner_datasets,
    input_channels,
    load_config,
    settings_inside,
    type_name,
)
from mmseg_ext.engine.run_record import batch_settings
from mmseg_ext.errors import LaunchError, join_names, one_line, short

PLAN = "plan.json"
IMAGES = "images.npz"  # pixels of each image of a test
# What a data set decides about a run; the rest is the model's config.
_OF_DATA = ("train_dataloader", "val_dataloader", "test_dataloader", "val_evaluator")
_OF_DATA += ("test_evaluator", "tta_pipeline", "crop_size", "rgb_bands")


@dataclass(frozen=True)
class Run:
    """A training of one config on one data set, and its tests."""

    model: str
    data: str
    seed: int
    rate: float  # factor of the config's learning rate
    config: Path
    folder: Path
    checkpoint: Path  # the last one of the training
    options: dict[str, Any]
    iterations: int | None = None  # None: the config's

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def length(self) -> int:
        """Return the iterations of the training, or its epochs."""
        return int(self.checkpoint.stem.rpartition("_")[2])

    @property
    def name(self) -> str:
        rate = "" if self.rate == 1 else f", rate x {self.rate:g}"
        return f"{self.model} on {self.data}{rate}, seed {self.seed}"

    def train_words(self) -> list[str]:
        """Return the arguments of `mmseg-ext` that train the run, or resume it."""
        words = ["train", str(self.config), "--work-dir", str(self.folder), "--resume"]
        if self.iterations is not None:
            words += ["--iterations", str(self.iterations)]
        return [*words, "--cfg-options", *(f"{key}={value}" for key, value in self.options.items())]

    def test_words(self, kind: str) -> list[str]:
        """Return the arguments of a test: 'test', or 'tta' with test-time augmentation."""
        words = ["test", str(self.config), str(self.checkpoint)]
        words += [
            "--work-dir",
            str(self.folder / kind),
            "--out",
            str(self.folder / kind / "labels"),
        ]
        if kind == "tta":
            words.append("--tta")
        return [*words, "--cfg-options", f"test_evaluator.0.images_file={self.images(kind)}"]

    def images(self, kind: str) -> Path:
        """Return the file with the pixels of each image; it is there when the test has ended."""
        return self.folder / kind / IMAGES


@dataclass
class Plan:
    """The runs of a comparison, in the order in which they start."""

    out: Path
    models: list[str]
    data: list[str]
    seeds: list[int]
    tests: list[str]  # 'test' and 'tta'
    threads: int | None
    runs: list[Run]
    costs: dict[tuple[str, str], Cost]  # by data and model
    differences: dict[str, list[str]]  # of the configs from the first one, by data

    def configs(self) -> dict[tuple[str, str], Path]:
        return {(run.data, run.model): run.config for run in self.runs}


def make_plan(
    configs: Sequence[str],
    data: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    iterations: int | None = None,
    minutes: float | None = None,
    rates: Sequence[float] = (1.0,),
    tta: bool = False,
    threads: int | None = None,
) -> Plan:
    """Return the plan in the folder `out`; write it there, or check that it is the folder's.

    Raises:
        LaunchError: for a config that does not build, for data sets of other classes, and for a
            folder with the runs of other settings.
    """
    if iterations is not None and minutes is not None:
        raise LaunchError("--iterations, --minutes: set one of them")
    for flag, values in (("configs", configs), ("--seeds", seeds), ("--rates", rates)):
        if len(set(values)) < len(values) or not values:
            raise LaunchError(f"{flag} {join_names([*map(str, values)])}: list each one once")
    models = _labels(configs)
    loaded = {model: load_config(path) for model, path in zip(models, configs, strict=True)}
    if data:
        columns = _labels([_config_of(path) for path in data])
        sets = {name: load_config(_config_of(p)) for name, p in zip(columns, data, strict=True)}
        combined = {
            (column, model): with_data(cfg, of_data)
            for column, of_data in sets.items()
            for model, cfg in loaded.items()
        }
    else:
        columns = [_same_classes(loaded)]
        combined = {(columns[0], model): cfg for model, cfg in loaded.items()}

    stored = _read_plan(out)
    settings = {"iterations": iterations, "minutes": minutes}
    for key, value in settings.items():
        if stored and stored["settings"][key] != value:
            raise LaunchError(
                f"{out}: has runs of {key}={stored['settings'][key]}, not {value}; "
                "set another folder with --out"
            )
    threads = stored["threads"] if stored else threads
    evaluator = _evaluator(next(iter(combined.values())))
    paths = {}
    for (column, model), cfg in combined.items():
        _prepare(cfg, evaluator)
        paths[column, model] = path = out / "configs" / column / f"{model}.py"
        if not path.is_file():
            write_text(cfg.pretty_text, path)
        elif path.read_text(encoding="utf-8") != cfg.pretty_text:
            raise LaunchError(
                f"{path}: differs from {cfg.filename} now, and its runs stay as they are; set "
                "another folder with --out"
            )
    # Started again, the plan has the costs of the first time, and so the same iterations.
    costs = {tuple(c["of"]): Cost(*c["cost"]) for c in (stored or {}).get("costs", [])}
    for column in columns:
        missing = [model for model in models if (column, model) not in costs]
        if missing:
            first = models[0]
            known = costs.get((column, first))
            names = [first, *(model for model in missing if model != first)]
            found = _measure([paths[column, name] for name in names], out, threads)
            for name, cost in zip(names, found, strict=True):
                seconds = cost.seconds if known is None else known.seconds * cost.ratio
                costs.setdefault((column, name), cost._replace(seconds=seconds))
    content = {
        "settings": settings,
        "threads": threads,
        "costs": [{"of": list(key), "cost": list(cost)} for key, cost in costs.items()],
    }
    write_text(json.dumps(content, indent=1) + "\n", out / PLAN)

    runs = []
    for seed in seeds:  # complete seeds come first
        for column in columns:
            for model in models:
                cfg, length = combined[column, model], iterations
                if minutes is not None:
                    length = max(1, round(60 * minutes / costs[column, model].seconds))
                for rate in rates:
                    runs.append(_run(out, column, model, seed, rate, cfg, paths, length))
    differences = {}
    for column in columns:
        of_column = {model: combined[column, model] for model in models}
        differences[column] = differing_settings(of_column)
    tests = ["test", "tta"] if tta else ["test"]
    return Plan(out, models, columns, [*seeds], tests, threads, runs, costs, differences)


def _labels(paths: Sequence[str]) -> list[str]:
    """Return short names: a file's, or for 'project/config.py' the folder's."""
    names = []
    for path in map(Path, paths):
        names.append(path.resolve().parent.name if path.stem == "config" else path.stem)
    for i, path in enumerate(map(Path, paths)):
        if names.count(names[i]) > 1 or "" in names:
            names[i] = f"{path.resolve().parent.name}_{path.stem}"
    if len(set(names)) < len(names):
        raise LaunchError(f"configs {join_names(names)}: have the same names; rename one file")
    return names


def _config_of(data: str) -> str:
    """Return the config of a project's folder, or of a path or name."""
    return str(Path(data, "config.py")) if Path(data).is_dir() else data


def _classes(cfg: Config) -> tuple[str, ...]:
    return classes_and_palette(cfg.test_dataloader.dataset)["classes"]


def _same_classes(configs: Mapping[str, Config]) -> str:
    """Return the name of the configs' data set; raise LaunchError if their classes differ."""
    (first, cfg), *others = configs.items()
    for name, other in others:
        if _classes(other) != _classes(cfg):
            raise LaunchError(
                f"{name}: its data has the classes {join_names(_classes(other))}, but that of "
                f"{first} {join_names(_classes(cfg))}; name the data with --data"
            )
    dataset = next(inner_datasets(cfg.test_dataloader.dataset))
    root = Path(dataset.get("data_root") or "")
    if (root.parent / "config.py").is_file():  # of a project
        return root.parent.resolve().name
    return root.name or type_name(dataset)


def with_data(cfg: Config, of_data: Config) -> Config:
    """Return a config's model, optimizer and hooks with the data of another config.

    The data decides images, crops, batch, splits, evaluation, windows and the iterations, to which
    the schedule is scaled. With other classes, heads get their number, and weights of classes those
    of the data's config.

    Raises:
        LaunchError: if the images have another number of bands than the model takes.
    """
    from mmseg_ext.engine.rescaling import rescale

    new = Config(cfg.to_dict(), filename=cfg.filename)
    data = Config(of_data.to_dict())
    bands = input_channels(data.model)
    if bands != input_channels(new.model):
        raise LaunchError(
            f"{cfg.filename}: takes images of {input_channels(new.model)} bands, but those of "
            f"{of_data.filename} have {bands}; change in_channels, mean and std in the config"
        )
    sampler = new.train_dataloader.get("sampler")
    for key in _OF_DATA:
        new.pop(key, None)
        if key in data:
            new[key] = data[key]
    if "max_iters" not in new.train_cfg:  # it counts epochs, which an endless sampler never ends
        new.train_dataloader.sampler = sampler
    elif "max_iters" in data.train_cfg:
        rescale(new, data.train_cfg.max_iters)
    preprocessor, of_model = new.model.data_preprocessor, data.model.data_preprocessor
    for key in ("size", "size_divisor", "test_cfg"):
        preprocessor.pop(key, None)
        if key in of_model:
            preprocessor[key] = of_model[key]
    new.model.test_cfg = data.model.test_cfg
    if _classes(cfg) != _classes(of_data):
        _set_classes(new.model, len(_classes(cfg)), len(_classes(of_data)), data.model)
    return new


def _set_classes(model: Any, old: int, number: int, of_data: Any) -> None:
    """Set the number of classes and their weights in the heads of a model."""
    weights = None
    for key, value in settings_inside("", of_data):
        if key.endswith(".class_weight") and isinstance(value, list | tuple):
            weights = weights or list(value)
    for _, settings in settings_inside("", model):
        if isinstance(settings, dict):
            for key in ("num_classes", "out_channels"):
                if settings.get(key) == old and "num_classes" in settings:
                    settings[key] = number
            if isinstance(settings.get("class_weight"), list | tuple):
                settings["class_weight"] = weights


def _evaluator(cfg: Config) -> list[dict]:
    """Return the evaluator of all tests: mIoU with the ignored label of the first config."""
    for metric in as_list(cfg.test_evaluator):
        if "IoU" in type_name(metric):
            ignored = metric.get("ignore_index", 255)
            return [dict(type="CheckedIoUMetric", iou_metrics=["mIoU"], ignore_index=ignored)]
    raise LaunchError(f"{cfg.filename}: test_evaluator has no IoUMetric; add it")


def _prepare(cfg: Config, evaluator: list[dict]) -> None:
    """Let a config resume exactly, train to its end, and test as the others."""
    cfg.test_evaluator = evaluator
    cfg.setdefault("runner_type", "DurableRunner")
    cfg.pop("work_dir", None)
    by_epoch = "max_iters" not in cfg.train_cfg
    length = cfg.train_cfg.max_epochs if by_epoch else cfg.train_cfg.max_iters
    hooks = cfg.setdefault("default_hooks", {})
    # The last checkpoint is tested: the best one of a validation would be chosen on its images.
    hooks["checkpoint"] = dict(
        type="DurableCheckpointHook",
        by_epoch=by_epoch,
        interval=max(1, length // 5),
        max_keep_ckpts=1,
    )
    if "custom_hooks" in cfg:
        kept = [hook for hook in cfg.custom_hooks if type_name(hook) != "EarlyStoppingHook"]
        cfg.custom_hooks = kept


def _run(out, column, model, seed, rate, cfg, paths, iterations) -> Run:
    """Return a run, whose options are the seed and, with another rate, the learning rate."""
    options: dict[str, Any] = {"randomness.seed": seed}
    name = f"seed{seed}"
    if rate != 1:
        try:
            options["optim_wrapper.optimizer.lr"] = cfg.optim_wrapper.optimizer.lr * rate
        except (AttributeError, KeyError) as error:
            raise LaunchError(
                f"--rates: {cfg.filename} has no optim_wrapper.optimizer.lr"
            ) from error
        name = f"rate{rate:g}_{name}"
    folder = out / "runs" / column / model / name
    if "max_iters" in cfg.train_cfg:
        last = f"iter_{iterations or cfg.train_cfg.max_iters}.pth"
    else:
        last = f"epoch_{cfg.train_cfg.max_epochs}.pth"
    path = paths[column, model]
    return Run(model, column, seed, rate, path, folder, folder / last, options, iterations)


def _read_plan(out: Path) -> dict | None:
    path = out / PLAN
    if not path.is_file():
        if out.is_dir() and any(p.name not in ("configs", ".training") for p in out.iterdir()):
            raise LaunchError(
                f"{out}: has other files, and no {PLAN}; set another folder with --out"
            )
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def _measure(configs: Sequence[Path], out: Path, threads: int | None) -> list[Cost]:
    """Measure configs in a process of its own, which builds them without training."""
    result = out / ".costs.json"
    words = ["compare", *map(str, configs), "--measure", str(result)]
    process = subprocess.run(
        [*PROGRAM, *words], env=environment(threads), capture_output=True, text=True
    )
    if process.returncode:
        raise LaunchError(failure(process.stderr, process.returncode))
    found = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return [Cost(*cost) for cost in found]


PROGRAM = (sys.executable, "-m", "mmseg_ext")


def environment(threads: int | None, gpu: str | None = None) -> dict[str, str]:
    """Return the environment of a run's process: its threads, and the only GPU that it sees."""
    found = dict(os.environ)
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    if gpu is not None:
        found["CUDA_VISIBLE_DEVICES"] = gpu
    return found


def failure(output: str, status: int) -> str:
    """Return the message of a command that failed, which is the last line of its output."""
    *_, line = ["", *filter(str.strip, output.splitlines())]
    if line.startswith("mmseg_ext: "):
        return line.removeprefix("mmseg_ext: ")
    return f"ended with status {status}: {one_line(line, 200)}"


def differing_settings(configs: Mapping[str, Config]) -> list[str]:
    """Return a line for each setting of training and data in which configs differ."""
    facts = {name: _facts(cfg) for name, cfg in configs.items()}
    first, *others = facts
    lines = []
    for key in facts[first]:
        texts = {name: str(of_config[key]) for name, of_config in facts.items()}
        if len(set(texts.values())) == 1:
            continue
        if max(map(len, texts.values())) <= 60:
            listed = ", ".join(f"{name} {text}" for name, text in texts.items())
            lines.append(f"{key}: {listed}")
        else:
            differ = [name for name in others if texts[name] != texts[first]]
            lines.append(f"{key}: {join_names(differ)} other than {first}")
    for name, cfg in configs.items():
        found = batch_settings(cfg, 1)
        if found["base_batch"] not in (None, found["effective_batch"]):
            lines.append(
                f"batch: {found['effective_batch']}, but the learning rate of {name} was set for "
                f"{found['base_batch']}"
            )
    return lines


def _facts(cfg: Config) -> dict[str, Any]:
    """Return what should be equal in a fair comparison."""
    training, testing = (
        [dict(one) for one in inner_datasets(cfg[f"{stage}_dataloader"].dataset)]
        for stage in ("train", "test")
    )
    transforms = [one.pop("pipeline", None) for one in training]
    of_test = [one.pop("pipeline", None) for one in testing]
    backbone = cfg.model.get("backbone") or {}
    init = backbone.get("init_cfg") or {}
    start = [cfg.get("load_from"), cfg.model.get("pretrained"), backbone.get("pretrained")]
    start += [one.get("checkpoint") for one in as_list(init)]
    wrapper = dict(cfg.optim_wrapper)
    optimizer = dict(wrapper.pop("optimizer", None) or {})
    return {
        "training images": training,
        "test images": testing,
        "crop": "x".join(map(str, crop_size(cfg))),
        "batch": batch_settings(cfg, 1)["effective_batch"],
        "training transforms": transforms,
        "test transforms": of_test,
        "windows": dict(cfg.model.get("test_cfg") or {}),
        "iterations": cfg.train_cfg.get("max_iters") or f"{cfg.train_cfg.max_epochs} epochs",
        "optimizer": f"{optimizer.pop('type', None)} {optimizer.pop('lr', None)}",
        "settings of the optimizer": [optimizer, wrapper],
        "schedule": cfg.get("param_scheduler"),
        "starts from": ", ".join(short(str(one)) for one in start if one) or "random weights",
        "runner": cfg.runner_type,
    }


def command_line(words: Sequence[str], threads: int | None) -> str:
    """Return a command as a shell reads it."""
    prefix = "" if threads is None else f"OMP_NUM_THREADS={threads} "
    return prefix + shlex.join([*PROGRAM, *words])
