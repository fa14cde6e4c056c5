"""Train the config of `new_project` on a public set, next to segmentation_models.pytorch's Unet.

    python -m benchmarks.own_dataset weeds FOLDER work_dirs/own_dataset

FOLDER has the set: `weeds` is github.com/cwfid/dataset (non-commercial research), `camvid` the
folder of docs/data.md, and `nuclei` the training images of the 2018 Data Science Bowl (CC0). Both
models have the same images, crops, rate and iterations, one thread, and random weights; then the
Unet trains for the minutes of the config. Minutes are CPU time. docs/own_dataset.md has tables.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from mmengine.config import Config

SETS = {  # the flags of new_project
    "weeds": "--images {0}/images --masks {0}/annotations --classes soil crop weed",
    "camvid": "--images {0} --masks {0} --ignore 11",
    "nuclei": "--images {0} --masks {0} --classes background nucleus",
}
UNET = """\
_base_ = "./config.py"
custom_imports = dict(imports=["mmseg_ext", "benchmarks.peers"], allow_failed_imports=False)
loss = {{_base_.model.decode_head.loss_decode}}
model = dict(
    backbone=dict(_delete_=True, type="SmpUnet", classes=CLASSES),
    neck=None,
    decode_head=dict(_delete_=True, type="UnetHead", num_classes=CLASSES, loss_decode=loss),
)
"""
ROW = re.compile(r"^\| +(\S+) +\| +([\d.]+|nan) +\| +[\d.na]+ +\|$", re.M)


def run(*words: str | Path) -> tuple[str, float, float]:
    """Run a command; return its output, the minutes of CPU time, and the largest memory in GiB."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryFile("w+") as log:
        program = [sys.executable, "-m", "mmseg_ext", *words]
        child = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
        _, status, used = os.wait4(child.pid, 0)
        log.seek(0)
        output = log.read()
    if status:
        raise SystemExit(output)
    return output, (used.ru_utime + used.ru_stime) / 60, used.ru_maxrss / 2**20


def train(config: Path, iterations: int, name: str) -> float:
    """Train and test a config, print a row of the table, and return the minutes of training."""
    work_dir, warmup = config.parent / name, max(1, iterations // 20)
    options = {"train_cfg.max_iters": iterations, "train_cfg.val_interval": iterations}
    options |= {"default_hooks.checkpoint.interval": iterations, "randomness.seed": 0}
    options |= {"param_scheduler.0.end": warmup, "param_scheduler.1.begin": warmup}
    options |= {"param_scheduler.1.end": iterations}
    flags = ["--cfg-options", *(f"{key}={value}" for key, value in options.items())]
    _, minutes, memory = run("train", config, "--work-dir", work_dir, *flags)
    last = work_dir / f"iter_{iterations}.pth"
    output, _, _ = run("test", config, last, "--work-dir", work_dir)
    scores = dict(ROW.findall(output))
    mean = np.nanmean([float(score) for score in scores.values()])
    cells = [name, iterations, f"{minutes:.1f}", f"{memory:.2f}", f"{mean:.1f}", *scores.values()]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SETS)
    parser.add_argument("data", type=Path)
    parser.add_argument("work_dir", type=Path)
    parser.add_argument("--iterations", type=int, help="default: of the config")
    args = parser.parse_args()
    project = args.work_dir / args.name
    print(run("new_project", project, *SETS[args.name].format(args.data).split())[0])
    config = Config.fromfile(project / "config.py")
    classes = len(config.classes)
    (project / "unet.py").write_text(UNET.replace("CLASSES", str(classes)))
    iterations = args.iterations or config.train_cfg.max_iters
    header = ["model", "iterations", "minutes", "GiB", "mIoU", *config.classes]
    print("| " + " | ".join(header) + " |\n|" + "-|" * len(header), flush=True)
    minutes = train(project / "config.py", iterations, "config")
    reference = train(project / "unet.py", iterations, "unet")
    train(project / "unet.py", round(iterations * minutes / reference), "unet_as_long")


if __name__ == "__main__":
    main()
