"""Draw 60 photos of 1200x900 with discs of two sizes, and time `new_project`, `train` and `test`.

    python -m benchmarks.own_dataset work_dirs/own_dataset

docs/own_dataset.md has the result.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


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


def main() -> None:
    folder = Path(sys.argv[1])
    for name in ("photos", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(60):
        draw(folder, index)
    started, environment = time.time(), os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    config, last = "project/config.py", "project/work_dir/iter_600.pth"
    for command in (
        "new_project project --images photos --masks masks --classes ground small large",
        f"train {config} --cfg-options randomness.seed=0",
        f"test {config} {last}",
    ):
        words = [sys.executable, "-m", "mmseg_ext", *command.split()]
        subprocess.run(words, cwd=folder, env=environment, check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, busy = time.time() - started, used.ru_utime + used.ru_stime
        print(f"{words[3]}: {seconds:.0f} s, {busy:.0f} s of CPU time so far")


if __name__ == "__main__":
    main()
