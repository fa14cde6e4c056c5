"""What a run is made of, in a file of its work directory and on the screen."""

import json
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
from mmseg_ext.engine.quiet_start import summary

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
