"""The plan of a comparison: configs x data sets x rates x seeds become runs in one folder.

The folder has a resolved config for each model and data set, and `plan.json` with the settings and
the measured times of the first start. Both are written once, so a comparison that is killed and
started again trains the same.

    OUT/plan.json
    OUT/configs/DATA/MODEL.py
    OUT/runs/DATA/MODEL/seed0/            the training, in test/ and tta/ its tests
    OUT/runs/DATA/MODEL/rate0.25_seed0/   with a quarter of the learning rate
"""

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmseg_ext.atomic_write import write_text
from mmseg_ext.comparison.timing import Cost
from mmseg_ext.engine.batch import batch_settings
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
from mmseg_ext.engine.rescaling import rescale
from mmseg_ext.errors import LaunchError, format_error, join_names, short

PLAN = "plan.json"
_SCALE = 100_000  # iterations to which schedules are scaled before they are compared
# What a data set decides about a run; the rest is the model's config.
_OF_DATA = ("train_dataloader", "val_dataloader", "test_dataloader", "val_evaluator")
_OF_DATA += ("test_evaluator", "tta_pipeline", "crop_size", "rgb_bands", "image_counts")


@dataclass(frozen=True)
class Run:
    """A training of one config on one data set, and its tests."""

    model: str
    data: str
    seed: int
    rate: float  # factor of the config's learning rate
    config: Path
    folder: Path
    last: str  # name of the last checkpoint
    options: dict[str, Any]
    iterations: int
    is_rescaled: bool  # the config has another number of iterations
    counted: tuple[str, ...]  # metrics whose counts a test writes: 'boundary', 'objects.CLASS'
    keeps_labels: bool  # the predicted label maps of the test, which the page shows

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def experiment(self) -> tuple[str, str, float]:
        """The entries in which runs of several seeds are equal; see `group_runs`."""
        return self.data, self.model, self.rate

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.last

    @property
    def name(self) -> str:
        rate = "" if self.rate == 1 else f", rate x {self.rate:g}"
        return f"{self.model} on {self.data}{rate}, seed {self.seed}"

    def train_words(self) -> list[str]:
        """Return the arguments of `mmseg-ext` that train the run, or resume it."""
        words = ["train", str(self.config), "--work-dir", str(self.folder), "--resume"]
        if self.is_rescaled:
            words += ["--iterations", str(self.iterations)]
        return [*words, "--cfg-options", *(f"{key}={value}" for key, value in self.options.items())]

    def test_words(self, kind: str) -> list[str]:
        """Return the arguments of a test: 'test', or 'tta' with test-time augmentation."""
        words = ["test", str(self.config), str(self.checkpoint)]
        words += ["--work-dir", str(self.folder / kind)]
        if kind == "tta":
            words.append("--tta")
        elif self.keeps_labels:
            words += ["--out", str(self.labels)]
        files = self.files(kind).values()
        options = [f"test_evaluator.{i}.images_file={file}" for i, file in enumerate(files)]
        return [*words, "--cfg-options", *options]

    def files(self, kind: str) -> dict[str, Path]:
        """Return the files with the counts of each image, which are there if a test has ended."""
        names = {"": "images.npz"}
        for number, metric in enumerate(self.counted):  # class names can have any character
            names[metric] = f"counts{number}.npy"
        return {metric: self.folder / kind / name for metric, name in names.items()}

    def has_test(self, kind: str) -> bool:
        return all(file.is_file() for file in self.files(kind).values())

    @property
    def labels(self) -> Path:
        return self.folder / "test" / "labels"


@dataclass
class Plan:
    """A comparison in its folder: models, data, settings, and the cost of each model."""

    out: Path
    models: list[str]
    data: list[str]
    seeds: list[int]
    rates: list[float]
    tests: list[str]  # 'test' and 'tta'
    metrics: list[str]
    iterations: int | None
    minutes: float | None
    threads: int | str | None  # of each process
    configs: dict[tuple[str, str], Config]  # by data and model
    costs: dict[tuple[str, str], Cost]  # complete when the models are measured
    notes: list[str]  # what differs between the models
    folder: Path  # the current one of the first start, from which relative paths in configs lead

    def config_file(self, data: str, model: str) -> Path:
        return self.out / "configs" / data / f"{model}.py"

    def save(self) -> None:
        """Write `plan.json`: the settings that change the runs, and what was measured."""
        is_around = self.out.is_relative_to(self.folder)  # both are moved and copied together
        content = {
            "folder": os.path.relpath(self.folder, self.out) if is_around else str(self.folder),
            "iterations": self.iterations,
            "minutes": self.minutes,
            "counted": counted_metrics(self.metrics),
            "threads": self.threads,
            "costs": [*self.costs.items()],
        }
        write_text(json.dumps(content, indent=1) + "\n", self.out / PLAN)

    @cached_property
    def runs(self) -> list[Run]:
        """Return the runs in the order in which they start, once the models are measured."""
        runs = []
        for seed in self.seeds:  # complete seeds come first
            for (data, model), cfg in self.configs.items():
                cost, loop, budget = self.costs[data, model], cfg.train_cfg, self.iterations
                if self.minutes is not None:
                    budget = round(60 * self.minutes / cost.seconds)
                    if budget < 2:  # schedules need two
                        raise LaunchError(
                            f"--minutes {self.minutes:g}: an iteration of {model} on {data} takes "
                            f"{cost.seconds:.2g} seconds; set a longer time and another --out"
                        )
                if "max_iters" in loop:
                    length = budget or loop.max_iters
                    last = f"iter_{length}.pth"
                else:
                    length, last = loop.max_epochs * cost.epoch, f"epoch_{loop.max_epochs}.pth"
                for rate in self.rates:
                    folder, options = f"seed{seed}", {"randomness.seed": seed}
                    if rate != 1:
                        folder = f"rate{rate:g}_{folder}"
                        own_rate = cfg.optim_wrapper.optimizer.lr
                        options["optim_wrapper.optimizer.lr"] = own_rate * rate
                    run = Run(
                        model,
                        data,
                        seed,
                        rate,
                        self.config_file(data, model),
                        self.out / "runs" / data / model / folder,
                        last,
                        options,
                        length,
                        budget is not None,
                        tuple(counted_metrics(self.metrics)),
                        keeps_labels=seed == self.seeds[0],
                    )
                    runs.append(run)
        return runs


def make_plan(
    configs: Sequence[str],
    data: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    iterations: int | None = None,
    minutes: float | None = None,
    rates: Sequence[float] = (1.0,),
    metrics: Sequence[str] = ("mIoU",),
    tta: bool = False,
    threads: int | str | None = None,
) -> Plan:
    """Return the plan in the folder `out`; write its configs, or check that they are the folder's.

    Raises:
        LaunchError: for a config that does not load, for data sets of other classes, and for a
            folder with the runs of other settings.
    """
    lists = {"CONFIG": configs, "--data": data, "--seeds": seeds, "--rates": rates}
    lists["--metrics"] = metrics
    for flag, values in lists.items():
        if len(set(values)) < len(values):
            raise LaunchError(f"{flag} {join_names([*map(str, values)])}: list each one once")
    if iterations is not None and minutes is not None:
        raise LaunchError("--iterations, --minutes: set one of them")
    for flag, value in {"--iterations": iterations, "--minutes": minutes}.items():
        if value is not None and value <= 0:
            raise LaunchError(f"{flag} {value:g}: must be positive")
    models, columns, cfgs = combine(configs, data)
    for name in (str(out), *models, *columns):
        if "," in name:  # the processes get their files by --cfg-options
            raise LaunchError(f"{name}: has a comma, which separates settings; use another name")
    evaluators = {column: _evaluators(cfgs[column, models[0]], metrics) for column in columns}
    for cfg in cfgs.values():
        if tta and "tta_pipeline" not in cfg:  # else the tests fail after all trainings
            raise LaunchError(f"--tta: {cfg.filename} or its data has no tta_pipeline; add it")

    # The first start in this folder has decided what changes the runs.
    counted = counted_metrics(metrics)
    stored = _read_plan(out, {"iterations": iterations, "minutes": minutes, "counted": counted})
    folder = Path(out, stored.get("folder") or Path.cwd()).resolve()  # up to 1.1.0 none is stored
    plan = Plan(
        out,
        models=models,
        data=columns,
        seeds=[*seeds],
        rates=[*rates],
        tests=["test", "tta"] if tta else ["test"],
        metrics=[*metrics],
        iterations=iterations,
        minutes=minutes,
        threads=stored.get("threads", threads),
        configs=cfgs,
        costs=stored.get("costs", {}),
        notes=[],
        folder=folder if folder.is_dir() else Path.cwd(),
    )
    for (column, model), cfg in cfgs.items():
        _prepare(cfg, evaluators[column], any(rate != 1 for rate in rates))
        path = plan.config_file(column, model)
        is_changed = path.is_file() and path.read_text(encoding="utf-8") != cfg.pretty_text
        if is_changed and (column, model) in plan.costs:  # else it did not build, and has no runs
            raise LaunchError(
                f"{path}: has runs of other settings than {cfg.filename} has now; set another --out"
            )
        write_text(cfg.pretty_text, path)
    plan.notes = _notes(plan)
    return plan


def _notes(plan: Plan) -> list[str]:
    """Return lines on what differs between the models, and on a rate that test images choose."""
    notes: dict[str, None] = {}  # in their order, each one once
    has_budget = plan.iterations is not None or plan.minutes is not None
    for column in plan.data:
        own = {model: plan.configs[column, model] for model in plan.models}
        notes |= dict.fromkeys(differing_settings(own, has_budget))
        cfg = own[plan.models[0]]
        if len(plan.rates) > 1 and _datasets(cfg, "val")[0] == _datasets(cfg, "test")[0]:
            text = f"{column}: the images that choose the rate are tested, too, so scores are too"
            notes[f"{text} high; set a test split"] = None
    return [*notes]


def counted_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metrics for which a test counts more than pixels: boundary, objects.CLASS."""
    found = {"boundary" for metric in metrics if metric.partition(".")[0] == "boundary"}
    return sorted(found | {metric for metric in metrics if metric.startswith("objects.")})


def combine(
    configs: Sequence[str], data: Sequence[str]
) -> tuple[list[str], list[str], dict[tuple[str, str], Config]]:
    """Return the names of the models and of the data sets, and the config of each pair of both.

    Raises:
        LaunchError: for a config that does not load, and for data of other classes.
    """
    models = _labels(configs)
    cfgs = {model: _load(path) for model, path in zip(models, configs, strict=True)}
    if not data:
        column = _same_classes(cfgs)
        return models, [column], {(column, model): cfg for model, cfg in cfgs.items()}
    columns, combined = _labels(data), {}
    for column, path in zip(columns, data, strict=True):
        of_data = _load(path)
        for model, cfg in cfgs.items():
            combined[column, model] = with_data(cfg, of_data)
    return models, columns, combined


def _load(path: str) -> Config:
    cfg = load_config(path)
    for key in ("model", "train_dataloader", "train_cfg", "optim_wrapper", "test_dataloader"):
        if not cfg.get(key):
            raise LaunchError(f"{path}: has no {key}; add it")
    return cfg


def _labels(paths: Sequence[str]) -> list[str]:
    """Return short names: a file's, or for 'project/config.py' and 'project' the folder's."""
    names = []
    files = [Path(path, "config.py") if Path(path).is_dir() else Path(path) for path in paths]
    for path in files:
        names.append(path.resolve().parent.name if path.stem == "config" else path.stem)
    for i, path in enumerate(files):
        if names.count(names[i]) > 1 or "" in names:
            names[i] = f"{path.resolve().parent.name}_{path.stem}"
    if len(set(names)) < len(names):
        raise LaunchError(f"configs {join_names(names)}: have the same names; rename one file")
    return names


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
    new, data = copy.deepcopy(cfg), copy.deepcopy(of_data)
    bands = input_channels(data.model)
    if bands != input_channels(new.model):
        raise LaunchError(
            f"{cfg.filename}: takes images of {input_channels(new.model)} bands, but the images of "
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
            own = settings.get("class_weight")
            if isinstance(own, list | tuple):
                of_no_object = len(own) == old + 1  # the last one, in mmdet's MaskFormer
                settings["class_weight"] = [1.0] * number + [own[-1]] if of_no_object else weights


def _evaluators(cfg: Config, metrics: Sequence[str]) -> list[dict]:
    """Return the evaluators of all tests on a data set, with the ignored label of a config.

    Raises:
        LaunchError: for a metric that there is not.
    """
    classes = _classes(cfg)
    of_iou = [one for one in as_list(cfg.test_evaluator) if "IoU" in type_name(one)]
    ignored = of_iou[0].get("ignore_index", 255) if of_iou else 255
    for metric in metrics:
        kind, _, wanted = metric.partition(".")
        of_class = kind in ("IoU", "Dice", "boundary", "objects") and wanted in classes
        if not of_class and metric not in ("mIoU", "mDice", "boundary"):
            raise LaunchError(
                f"--metrics {metric}: is not a score; use mIoU, mDice, boundary, or IoU, Dice, "
                f"boundary or objects with a class, as IoU.{classes[-1]}; the classes are "
                f"{join_names(classes)}"
            )
    found = [dict(type="CheckedIoUMetric", iou_metrics=["mIoU"], ignore_index=ignored)]
    for metric in counted_metrics(metrics):  # in the order of `Run.files`
        if metric == "boundary":
            found.append(dict(type="BoundaryMetric", ignore_index=ignored))
        else:
            wanted = metric.partition(".")[2]
            own = dict(object_class=wanted, prefix=metric, ignore_index=ignored)
            found.append(dict(type="ObjectMetric", **own))
    return found


def _prepare(cfg: Config, evaluators: list[dict], has_rates: bool) -> None:
    """Let a config resume exactly, train to its end, and test as the others.

    Raises:
        LaunchError: with several rates, for a config without a rate or without validations.
    """
    if has_rates and "lr" not in cfg.optim_wrapper.get("optimizer", {}):
        raise LaunchError(f"--rates: {cfg.filename} has no optim_wrapper.optimizer.lr; add it")
    if has_rates and not cfg.get("val_cfg"):
        raise LaunchError(f"--rates: {cfg.filename} has no val_cfg to choose a rate by; add it")
    cfg.test_dataloader.sampler = dict(type="DefaultSampler", shuffle=False)  # one order for all
    cfg.test_evaluator = evaluators
    cfg.setdefault("runner_type", "DurableRunner")
    cfg.pop("work_dir", None)
    by_epoch = "max_iters" not in cfg.train_cfg
    length = cfg.train_cfg.max_epochs if by_epoch else cfg.train_cfg.max_iters
    hooks = cfg.setdefault("default_hooks", {})
    # The last checkpoint is tested: a validation chooses the best one on its own images.
    hooks["checkpoint"] = dict(
        type="DurableCheckpointHook",
        by_epoch=by_epoch,
        interval=max(1, length // 5),
        max_keep_ckpts=1,
    )
    if "custom_hooks" in cfg:
        kept = [hook for hook in cfg.custom_hooks if type_name(hook) != "EarlyStoppingHook"]
        cfg.custom_hooks = kept


def _read_plan(out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan in a folder, empty if there is none; raise LaunchError if settings differ."""
    path = out / PLAN
    if not path.is_file():
        others = [one.name for one in out.glob("*") if one.name not in ("configs", ".training")]
        if others:
            raise LaunchError(
                f"{out}: has other files ({join_names(others)}) and no {PLAN}; set another --out"
            )
        return {}
    try:
        stored = dict(json.loads(path.read_bytes()))
        stored["costs"] = {tuple(name): Cost(*cost) for name, cost in stored["costs"]}
        found = {key: stored[key] for key in (*settings, "threads")}
    except (KeyError, TypeError, ValueError) as error:
        raise LaunchError(
            f"{path}: cannot be read ({format_error(error)}); restore it, or set another --out"
        ) from error
    for key, value in settings.items():
        if found[key] != value:
            raise LaunchError(
                f"{out}: has runs of {key}={found[key]}, not {value}; set another --out"
            )
    return stored


def differing_settings(configs: Mapping[str, Config], has_budget: bool = False) -> list[str]:
    """Return a line for each setting of training and data in which configs differ.

    With a budget, schedules are scaled to it, so only their shapes count.
    """
    facts = {}
    for name, cfg in configs.items():
        cfg = copy.deepcopy(cfg)
        if has_budget:
            try:
                rescale(cfg, _SCALE)
            except LaunchError as error:
                raise LaunchError(f"{cfg.filename}: {error}") from error
        facts[name] = _facts(cfg)
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


def _datasets(cfg: Config, stage: str) -> tuple[list[dict], list]:
    """Return the settings of the datasets of 'train', 'val' or 'test', and their transforms."""
    found = [dict(one) for one in inner_datasets(cfg[f"{stage}_dataloader"].dataset)]
    return found, [one.pop("pipeline", None) for one in found]


def _facts(cfg: Config) -> dict[str, Any]:
    """Return what should be equal in a fair comparison."""
    (training, transforms), (testing, of_test) = _datasets(cfg, "train"), _datasets(cfg, "test")
    start = [cfg.get("load_from"), cfg.model.get("pretrained")]
    for key, value in settings_inside("backbone", cfg.model.get("backbone")):
        if key.rpartition(".")[2] in ("pretrained", "checkpoint", "weights"):
            start.append(value)
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
        "starts from": ", ".join(short(str(one)) for one in start if one) or "no file",
        "runner": cfg.runner_type,
    }
