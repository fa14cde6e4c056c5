"""Record a run's settings and software in its work directory, and summarize them in its log.

`describe_run` computes the record from a config, before or during a training. `RunRecordHook`
writes it to `run.json`, and `summary` turns it into the lines that a training logs at its start.
"""

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS

from mmseg_ext.atomic_write import write_text
from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.durable.levers import LeverHook
from mmseg_ext.durable.optimizer_groups import single_wrappers
from mmseg_ext.engine.amp import default_dtype
from mmseg_ext.engine.batch import batch_settings
from mmseg_ext.engine.config import as_list, crop_size, inner_datasets, type_name
from mmseg_ext.errors import LaunchError
from mmseg_ext.reports.records import read_records, write_record

_PACKAGES = ("mmseg_ext", "torch", "numpy", "mmengine", "mmcv", "mmseg", "mmdet", "mmpretrain")
_FROM_SCRATCH = (
    "random weights; for pretrained ones set "
    "model.backbone.init_cfg=dict(type='Pretrained', checkpoint=FILE)"
)


def git_commit() -> str:
    """Return the commit of this package's checkout, with '-dirty' if files differ.

    Return 'unknown' for an installed package and without git.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "unknown"
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def describe_run(cfg: Config, world_size: int, seed: int | None) -> dict:
    """Return the settings that determine a run's results, and its software, as JSON values."""
    wrapper = cfg.get("optim_wrapper") or {}
    kind = type_name({"type": "OptimWrapper", **wrapper})
    default = "float16" if kind == "AmpOptimWrapper" else default_dtype()
    dtype = wrapper.get("dtype") or default
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        if name in sys.modules:
            versions[name] = sys.modules[name].__version__
    modules = {}  # of the user, such as an own head
    for name in as_list((cfg.get("custom_imports") or {}).get("imports")):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and name.partition(".")[0] not in _PACKAGES:
            with contextlib.suppress(OSError):  # inside a zip file, or removed since
                modules[name] = f"sha256 {_digest(Path(file).read_bytes())}"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "config": cfg.filename,
        "work_dir": cfg.get("work_dir"),
        "command": sys.argv,
        **batch_settings(cfg, world_size),
        "learning_rate": wrapper.get("optimizer", {}).get("lr"),
        "precision": "float32" if kind == "OptimWrapper" else f"mixed, {dtype}",
        "seed": seed,
        "deterministic": cfg.get("randomness", {}).get("deterministic", False),
        "git_commit": git_commit(),
        "versions": versions,
        "own_modules": modules,
        "devices": gpus or [f"CPU, {torch.get_num_threads()} threads"],
        "host": platform.node(),
    }


@HOOKS.register_module()
class RunRecordHook(Hook):
    """Writes `run.json` and the resolved `config.py` to the log folder when training starts.

    It also logs a few lines about the run. The log folder is `<work_dir>/<time>`; every start has
    its own, also a resumed one. `ended` in `run.json` is the time of the last checkpoint, and of
    the end of the training.
    """

    priority = "LOW"  # after a resume has restored the seed

    _record: dict | None = None  # of the main process

    def before_train(self, runner) -> None:
        if not is_main_process():
            return
        self._record = record = describe_run(runner.cfg, runner.world_size, runner.seed)
        record["folder"] = os.path.abspath(runner.work_dir)  # the config's may be relative
        record["iterations"] = runner.max_iters
        record["start_iteration"] = runner.iter
        record["training_data"] = describe_data(runner.train_dataloader.dataset)
        record["started"] = _now()
        for hook in runner.hooks:
            if isinstance(hook, LeverHook):
                record["levers"] = hook.used
        if runner.iter > 0:
            warn_of_changes(runner, record)
        self._write(runner)
        write_text(runner.cfg.pretty_text, Path(runner.log_dir, "config.py"))
        for line in summary(runner, record):
            runner.logger.info(line)

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint["meta"]["crop_size"] = crops_of(runner.cfg)  # for `SameData`
        self._write(runner)

    def after_train(self, runner) -> None:
        self._write(runner)

    def _write(self, runner) -> None:
        if self._record is not None:
            self._record["ended"] = _now()
            write_record(self._record, runner.log_dir)


def describe_data(dataset: Any) -> str:
    """Return the number of images, and a hash of the names and sizes of their files and labels.

    Equal texts mean equal data also in another folder, unless a file was changed without changing
    its size: no file is read. Datasets that do not list files are 'unknown'.
    """
    lines: list[str] = []
    count = 0

    def add(path: str) -> None:
        size = 0
        with contextlib.suppress(OSError):  # of a server, without labels
            size = os.stat(path).st_size
        lines.append(f"{Path(path).name} {size}")

    for part in inner_datasets(dataset):
        if not isinstance(part, BaseDataset):
            return "unknown"
        count += len(part)
        info: dict[str, Any] = {}
        for i in range(len(part)):
            info = part.get_data_info(i)
            # Also files of other labels, such as `xml_path` and `depth_map_path`.
            others = sorted(key for key in info if key.endswith("_path"))
            for key in dict.fromkeys(("img_path", "seg_map_path", *others)):
                add(str(info.get(key) or ""))
        if "instances" in info:  # which COCO has in one file
            add(str(part.ann_file))
    text = "\n".join(lines)
    return f"{count} images, sha256 {_digest(os.fsencode(text))}"


def warn_of_changes(runner: Any, record: dict) -> None:
    """Warn if a resumed run continues with other images, label maps or modules than before."""
    try:
        *_, last = read_records(runner.work_dir).values() or [{}]
    except ValueError as error:  # no reason to stop the run
        runner.logger.warning(error)
        return
    for key in ("training_data", "own_modules"):
        if last.get(key) not in (None, record[key]):
            runner.logger.warning(
                f"{key}: {record[key]}, but {last[key]} at the last start, so the run is not the "
                "same as without a stop"
            )


def crops_of(cfg: Config) -> tuple[int, int] | None:
    """Return the `crop_size` of a config; None without one, as of a detector."""
    with contextlib.suppress(AttributeError, LaunchError, TypeError):
        return crop_size(cfg)
    return None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def summary(runner, record: dict) -> list[str]:
    """Return lines about a training that starts; `record` comes from `describe_run`."""
    model, loop = unwrap_model(runner.model), runner.train_loop
    parts = []
    for name, module in model.named_children():
        if name != "data_preprocessor":
            parts.append(type(module).__name__)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    data = runner.train_dataloader.dataset
    dataset = type(next(inner_datasets(data))).__name__
    return [
        f"model: {type(model).__name__} of {', '.join(parts)}; {millions:.2f} M parameters",
        f"backbone: starts from {initial_weights(runner) or _FROM_SCRATCH}",
        f"data: {dataset}, {len(data):,} images; batch: {record['world_size']} x "
        f"{record['batch_per_process']}, gradients of {record['accumulated_batches']} a step",
        f"schedule: from {runner.iter:,} to {loop.max_iters:,} iterations, learning rate "
        f"{record['learning_rate']} x {record['learning_rate_factor']:g}",
        *describe_groups(runner.optim_wrapper),
        f"on: {', '.join(record['devices'])}; {record['precision']}; seed {record['seed']}",
        f"log and config: {runner.log_dir}",
    ]


def describe_groups(wrapper: OptimWrapper | OptimWrapperDict) -> list[str]:
    """Return a line for each learning rate, with its decays, if the parameters have several."""
    counts: Counter[tuple[float, float]] = Counter()  # of parameters by rate and decay
    for part in single_wrappers(wrapper):
        for group in part.optimizer.param_groups:
            # The schedules may have changed the rate already.
            rate = float(group.get("initial_lr", group["lr"]))
            trained = sum(p.numel() for p in group["params"] if p.requires_grad)
            counts[rate, group.get("weight_decay", 0.0)] += trained
    if len(counts) < 2:
        return []
    parts_of: dict[float, list[str]] = {}  # of the line of each rate
    for (rate, decay), number in counts.items():
        parts_of.setdefault(rate, []).append(f"{number:,} parameters with decay {decay:g}")
    lines = []
    for rate in sorted(parts_of, reverse=True):
        lines.append(f"learning rate {rate:.3g}: {', '.join(parts_of[rate])}")
    return lines


def initial_weights(runner) -> str | None:
    """Return the file or setting that the backbone's weights come from, or None if random."""
    if runner.iter > 0:
        return "the resumed checkpoint"
    if runner.cfg.get("load_from"):
        return str(runner.cfg.load_from)
    model = unwrap_model(runner.model)
    for module in (getattr(model, "backbone", None), model):
        for init in as_list(getattr(module, "init_cfg", None)):
            if "Pretrained" in str(init["type"]):
                return str(init["checkpoint"])
    pretrained = (runner.cfg.model.get("backbone") or {}).get("pretrained")  # timm's argument
    return f"pretrained={pretrained}" if pretrained else None
