"""Time and memory of training steps with encoders of timm: the table of docs/own_dataset.md.

    python -m benchmarks.peers PEERS   # an environment with timm
    OMP_NUM_THREADS=1 PEERS/bin/python -m benchmarks.encoders default resnet50 convnext_tiny

Each network is measured in a process of its own, with random weights, at the default crop and batch
of a project of photos of 420x300 pixels. A step is forward pass, loss, backward pass and optimizer;
its time is that of the processor, so other processes change it less.
"""

import contextlib
import io
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

STEPS, WARM_UP = 3, 1


def make_project(folder: Path, encoder: str) -> Path:
    """Make a project of eight noisy photos with two classes, and return its config."""
    import mmseg_ext

    random = np.random.RandomState(0)
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for i in range(8):
        label = np.kron(random.randint(0, 2, (10, 14)), np.ones((30, 30))).astype(np.uint8)
        image = label[..., None] * 80 + random.randint(0, 80, (300, 420, 3))
        Image.fromarray(label).save(folder / f"masks/{i}.png")
        Image.fromarray(image.astype(np.uint8)).save(folder / f"images/{i}.png")
    network = {} if encoder == "default" else {"encoder": encoder, "start": "scratch"}
    paths = (folder / "project", folder / "images")
    return mmseg_ext.new_project(*paths, masks=folder / "masks", **network).config


def measure(encoder: str) -> None:
    """Print the parameters, the seconds of a step and the peak memory of a network."""
    from mmseg_ext.engine.build import build_train_runner

    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        config = make_project(Path(name), encoder)
        options = {"model.backbone.init_cfg": None, "train_dataloader.num_workers": 0}
        options["train_dataloader.persistent_workers"] = False
        runner = build_train_runner(str(config), options)
        batch = next(iter(runner.train_dataloader))
        model = runner.model.train()
        wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        for i in range(WARM_UP + STEPS):
            if i == WARM_UP:
                start = time.process_time()
            model.train_step(batch, wrapper)
        seconds = (time.process_time() - start) / STEPS
        size = "x".join(map(str, batch["inputs"][0].shape[1:]))
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    count = len(batch["inputs"])
    print(
        f"| `{encoder}` | {millions:.1f} | {seconds:.2f} | {memory:.1f} | {count} x {size}",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for encoder in sys.argv[1:]:
        process = multiprocessing.get_context("spawn").Process(target=measure, args=[encoder])
        process.start()
        process.join()
