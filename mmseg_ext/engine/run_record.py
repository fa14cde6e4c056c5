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
from mmseg_ext.environment import STACK, module_version


def git_commit() -> str:
    """The commit of this package, '-dirty' where files differ, or 'unknown'.

    It is known in a checkout of this project alone: an installed package may lie in the repository
    of another one.
    """
    root = Path(mmseg_ext.__file__).resolve().parents[1]
    if Path(_git(root, "rev-parse", "--show-toplevel") or "/").resolve() != root:
        return "unknown"
    return _git(root, "describe", "--always", "--abbrev=40", "--dirty") or "unknown"


def _git(folder: Path, *arguments: str) -> str:
    """What git prints, empty where it fails or is not installed."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip()


def describe_run(cfg: Config, world_size: int, seed: int | None) -> dict:
    """The settings that decide a run's numbers, and the software it runs on, as JSON values."""
    batch = cfg.get("train_dataloader", {}).get("batch_size")
    accumulated = cfg.get("optim_wrapper", {}).get("accumulative_counts", 1)
    effective = None if batch is None else world_size * batch * accumulated
    scaling = cfg.get("auto_scale_lr") or {}
    base, on = scaling.get("base_batch_size"), scaling.get("enable", False)
    known = base is not None and effective is not None
    return {
        "config": cfg.filename,
        "work_dir": cfg.get("work_dir"),
        "command": sys.argv,
        "world_size": world_size,
        "batch_per_process": batch,
        "accumulated_batches": accumulated,
        "effective_batch": effective,
        "base_batch": base,
        "learning_rate": cfg.get("optim_wrapper", {}).get("optimizer", {}).get("lr"),
        "learning_rate_factor": effective / base if known and on else 1.0,
        "precision": cfg.get("optim_wrapper", {}).get("type"),
        "seed": seed,
        "deterministic": cfg.get("randomness", {}).get("deterministic", False),
        "git_commit": git_commit(),
        "versions": {
            "mmseg_ext": mmseg_ext.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "numpy": module_version("numpy"),
            **{name: module_version(name) for name in STACK},
        },
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        or [f"CPU, {torch.get_num_threads()} threads"],
        "host": platform.node(),
        "launched": {
            k: os.environ[k]
            for k in ("SLURM_JOB_ID", "TORCHELASTIC_RESTART_COUNT")
            if k in os.environ
        },
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
