"""Train the config of `new_project` on a public set, next to segmentation_models.pytorch's Unet.

    python -m benchmarks.own_dataset weeds FOLDER work_dirs/own_dataset

FOLDER has the set: `weeds` is github.com/cwfid/dataset (non-commercial research), `camvid` the
folder of docs/data.md, `nuclei` the training images of the 2018 Data Science Bowl (CC0), and
`drawn` needs none. Both models have the same images, crops, rate and iterations, one thread, and
random weights; then the config trains for the minutes of the Unet. Minutes are CPU time.
docs/own_dataset.md has tables.
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
from PIL import Image, ImageDraw, ImageFilter

SETS = {  # the flags of new_project
    "weeds": "--images {0}/images --masks {0}/annotations --classes soil crop weed",
    "camvid": "--images {0} --masks {0} --ignore 11",
    "nuclei": "--images {0} --masks {0} --classes background nucleus",
    "drawn": "--images {0}/photos --masks {0}/masks --classes ground small large",
}
UNET = """\
_base_ = "./config.py"
custom_imports = dict(imports=["mmseg_ext", "benchmarks.unet"], allow_failed_imports=False)
loss = {{_base_.model.decode_head.loss_decode}}
model = dict(
    backbone=dict(_delete_=True, type="SmpUnet", classes=CLASSES),
    neck=None,
    decode_head=dict(_delete_=True, type="UnetHead", num_classes=CLASSES, loss_decode=loss),
)
"""
ROW = re.compile(r"^\| +(\S+) +\| +([\d.]+|nan) +\| +[\d.na]+ +\|$", re.M)


def draw(folder: Path, index: int) -> None:
    """Write a photo and its mask: 0 ground, 10 small discs, 20 large discs of the same colors."""
    rng = np.random.default_rng(index)
    ground = rng.integers(60, 180, 3)
    texture = np.kron(rng.normal(0, 18, (30, 40, 3)), np.ones((30, 30, 1))) + ground
    photo = Image.fromarray(texture.clip(0, 255).astype(np.uint8))
    photo, mask = photo.filter(ImageFilter.GaussianBlur(12)), Image.new("L", photo.size)
    for _ in range(rng.integers(5, 10)):
        value = int(rng.choice([10, 20]))
        radius = rng.uniform(30, 45) if value == 10 else rng.uniform(90, 130)
        color = ground
        while np.abs(color - ground).max() < 60:  # visible
            color = rng.integers(0, 256, 3)
        x, y = rng.uniform(0, 1200), rng.uniform(0, 900)
        box = (x - radius, y - radius, x + radius, y + radius)
        ImageDraw.Draw(photo).ellipse(box, fill=tuple(color.tolist()))
        ImageDraw.Draw(mask).ellipse(box, fill=value)
    noisy = np.asarray(photo) + rng.normal(0, 6, (900, 1200, 3))
    photo = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    photo.save(folder / f"photos/{index:02d}.JPG", "JPEG", quality=90)
    mask.save(folder / f"masks/{index:02d}_mask.png")


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
    if args.name == "drawn":
        for folder in ("photos", "masks"):
            (args.data / folder).mkdir(parents=True, exist_ok=True)
        for index in range(60):
            draw(args.data, index)
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
    train(project / "config.py", round(iterations * reference / minutes), "config_as_long")


if __name__ == "__main__":
    main()
