"""What a run is made of: in its work directory, and in ten lines on the terminal.

mmengine logs four hundred lines before the first iteration. They go to the log file alone.
"""

import json
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

import mmseg_ext
from mmseg_ext.atomic_write import write_text
from mmseg_ext.checkpoint.loading import unwrap_model

_PACKAGES = ("mmseg_ext", "torch", "numpy", "mmengine", "mmcv", "mmseg", "mmdet", "mmpretrain")


def git_commit() -> str:
    """The commit of the checkout that holds this package, '-dirty' where files differ.

    'unknown' for an installed package, and without git.
    """
    root = Path(mmseg_ext.__file__).resolve().parents[1]
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found if (root / ".git").exists() else "unknown"


def describe_run(cfg: Config, world_size: int, seed: int | None) -> dict:
    """The settings that decide a run's numbers, and the software it runs on, as JSON values."""
    wrapper, scaling = cfg.get("optim_wrapper") or {}, cfg.get("auto_scale_lr") or {}
    batch = cfg.get("train_dataloader", {}).get("batch_size")
    accumulated = wrapper.get("accumulative_counts", 1)
    effective = None if batch is None else world_size * batch * accumulated
    base = scaling.get("base_batch_size")
    scaled = scaling.get("enable", False) and base is not None and effective is not None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "config": cfg.filename,
        "work_dir": cfg.get("work_dir"),
        "command": sys.argv,
        "world_size": world_size,
        "batch_per_process": batch,
        "accumulated_batches": accumulated,
        "effective_batch": effective,
        "base_batch": base,
        "learning_rate": wrapper.get("optimizer", {}).get("lr"),
        "learning_rate_factor": effective / base if scaled else 1.0,
        "precision": wrapper.get("type"),
        "seed": seed,
        "deterministic": cfg.get("randomness", {}).get("deterministic", False),
        "git_commit": git_commit(),
        "versions": {
            "python": platform.python_version(),
            **{name: sys.modules[name].__version__ for name in _PACKAGES if name in sys.modules},
        },
        "devices": gpus or [f"CPU, {torch.get_num_threads()} threads"],
        "host": platform.node(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "restarts": os.environ.get("TORCHELASTIC_RESTART_COUNT"),
    }


@HOOKS.register_module()
class RunRecordHook(Hook):
    """At the start of training, `run.json` and the resolved `config.py` in the run's log folder,
    and a few lines about it on the terminal.

    The log folder is `<work_dir>/<time>`: each start, a resumed one too, has its own.
    """

    priority = "LOW"  # after a resume has put the seed back

    def before_train(self, runner) -> None:
        if not is_main_process():
            return
        record = describe_run(runner.cfg, runner.world_size, runner.seed)
        record["start_iteration"] = runner.iter
        folder = Path(runner.log_dir)
        write_text(json.dumps(record, indent=2, default=str) + "\n", folder / "run.json")
        write_text(runner.cfg.pretty_text, folder / "config.py")
        for line in summary(runner, record):
            runner.logger.info(line)


# The environment, the config and the order of the hooks.
_LONG = ("-----", "Config:", "Hooks will be executed in the following order")


def quiet_terminal(logger: logging.Logger) -> None:
    """Spare the logger's terminal the long records of the start; its files get every line."""
    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(_is_short)


def _is_short(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or not record.getMessage().lstrip().startswith(_LONG)


def summary(runner, record: dict) -> list[str]:
    """Lines about a training that is about to start; `record` is that of `describe_run`."""
    model, loop = unwrap_model(runner.model), runner.train_loop
    parts = [type(m).__name__ for n, m in model.named_children() if n != "data_preprocessor"]
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    data = kind = runner.train_dataloader.dataset
    while hasattr(kind, "dataset"):  # out of wrappers
        kind = kind.dataset
    return [
        f"model: {type(model).__name__} of {', '.join(parts)}; {millions:.2f} M parameters",
        f"data: {type(kind).__name__}, {len(data):,} images; batch: {record['world_size']} x "
        f"{record['batch_per_process']}, gradients of {record['accumulated_batches']} a step",
        f"schedule: from {runner.iter:,} to {loop.max_iters:,} iterations, learning rate "
        f"{record['learning_rate']} x {record['learning_rate_factor']:g}",
        f"on: {', '.join(record['devices'])}; {record['precision']}; seed {record['seed']}",
        f"log and config: {runner.log_dir}",
    ]
