"""The stage `loop`: a paper's training as users run it, with files on a disk and data loaders.

The images have the size of ADE20K's. The rate is that of the iterations after the first 20, in
which loaders start and kernels are chosen. Next to it are the rates of the same step without a
loader, and of the loader without steps.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import mmseg
import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from benchmarks.gpu import plan
from benchmarks.gpu.checks import NO_VALIDATION
from benchmarks.gpu.isolated import Job, isolated_rows
from benchmarks.gpu.plan import Loop
from benchmarks.gpu.speed import number
from benchmarks.gpu.stage import Row, Run
from benchmarks.gpu.variants import step_times, synchronize
from benchmarks.training_step import random_batch, training_config
from mmseg_ext import register_all_modules
from mmseg_ext.engine.build import build_train_runner

STOCK_BASES = Path(mmseg.__path__[0], ".mim", "configs", "_base_")
STOCK_FILES = ("datasets/ade20k.py", "schedules/schedule_160k.py", "default_runtime.py")
DIFFERENT = 40  # images; the other files are their copies


def loop(run: Run) -> Iterator[Row]:
    """Measure trainings with several numbers of workers, and mmsegmentation's Runner."""
    register_all_modules()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        count, size = (8, (96, 64)) if run.quick else (400, (683, 512))
        write_ade20k(folder / "data", count, size)
        wanted = plan.loops(run.quick)
        for _, group in itertools.groupby(wanted, key=lambda one: (one.stock, one.keys)):
            jobs = [job_of(run, one, folder) for one in group]
            yield from isolated_rows(run, [job for job in jobs if run.wants(job.title)])


def job_of(run: Run, one: Loop, folder: Path) -> Job:
    runner = "Runner, EncoderDecoder" if one.stock else "DurableRunner"
    keys = ", ".join(key for key, value in one.keys.items() if value)
    title: Row = {"config": one.config, "runner": runner, "keys": keys}
    title |= {"precision": one.precision, "batch": str(one.batch), "workers": str(one.workers)}
    return Job(title, one.limit, lambda: columns(run, one, folder))


def write_ade20k(root: Path, count: int, size: tuple[int, int]) -> None:
    """Write images and label maps of `size` (W, H) in the folders of ADE20K."""
    random, files = np.random.RandomState(0), []
    cv2.setNumThreads(1)  # its threads would not exist in forked processes
    for _ in range(min(count, DIFFERENT)):
        coarse = random.randint(0, 256, (size[1] // 16, size[0] // 16, 3)).astype(np.uint8)
        image = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC).astype(np.float64)
        image += random.normal(0, 5, image.shape)  # a file of 100 kB, as ADE20K's
        image = image.clip(0, 255).astype(np.uint8)
        coarse = random.randint(0, 151, (size[1] // 32, size[0] // 32)).astype(np.uint8)
        label = cv2.resize(coarse, size, interpolation=cv2.INTER_NEAREST)  # 0 is ignored
        files.append((cv2.imencode(".jpg", image)[1], cv2.imencode(".png", label)[1]))
    for kind in ("images", "annotations"):
        (root / kind / "training").mkdir(parents=True)
    for i in range(count):
        image, label = files[i % len(files)]
        name = f"training/ADE_train_{i:08}"
        (root / "images" / f"{name}.jpg").write_bytes(image.tobytes())
        (root / "annotations" / f"{name}.png").write_bytes(label.tobytes())


class Clock(Hook):
    """Notes the times after two iterations, when the device has done them, and the step."""

    priority = "LOWEST"

    def __init__(self, run: Run, first: int, last: int):
        self.run, self.noted = run, (first, last)
        self.times: list[float] = []
        self.train: Any = None

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 in self.noted:
            synchronize(self.run)
            self.times.append(time.perf_counter())
            self.train = runner.model.train_step  # the end of the training removes a CUDA graph


def columns(run: Run, one: Loop, folder: Path) -> Iterator[Row]:
    """Train, and yield the rates of the training, of its step and of its loader."""
    first, last = (1, 2) if run.quick else (20, 60)
    work = folder / f"work{time.time_ns()}"
    build = stock_runner if one.stock else own_runner
    runner = build(run, one, folder, work, last)
    clock = Clock(run, first, last)
    runner.register_hook(clock)
    begin = time.perf_counter()
    runner.train()
    start, end = clock.times
    images = one.batch * (last - first)
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if run.on_gpu else ""
    row: Row = {"images per s": number(images / (end - start)), "peak GiB": peak}
    yield row | {f"first {first} iterations, s": f"{start - begin:.1f}"}
    batch = random_batch(runner.cfg)
    times = step_times(run, lambda: clock.train(batch, runner.optim_wrapper))
    yield {"step alone, images per s": number(one.batch / times.queued)}
    yield {"loader alone, images per s": number(loader_rate(runner))}


def own_runner(run: Run, one: Loop, folder: Path, work: Path, last: int) -> Runner:
    """Build the Runner of `mmseg-ext train`, with --amp for bfloat16."""
    options = {**common_options(run, one, folder, last), **one.keys}
    amp = one.precision == "bfloat16"
    return build_train_runner(one.config, options, str(work), amp=amp)


def stock_runner(run: Run, one: Loop, folder: Path, work: Path, last: int) -> Runner:
    """Build the Runner of mmsegmentation's `train.py --amp`, with its data, schedule and hooks."""
    settings: dict = {}
    for name in STOCK_FILES:
        settings |= Config.fromfile(STOCK_BASES / name).to_dict()
    settings["model"] = training_config(one.config, stock=True, quick=False).model
    settings["work_dir"] = str(work)
    config = Config(settings)
    if one.precision == "bfloat16":
        config.optim_wrapper.update(type="AmpOptimWrapper", dtype="bfloat16")
    config.merge_from_dict({**common_options(run, one, folder, last), **one.keys})
    return Runner.from_cfg(config)


def common_options(run: Run, one: Loop, folder: Path, last: int) -> dict[str, Any]:
    """Return the changes of both configs: the files, the batch, and the length of the run."""
    dataset: dict[str, Any] = dict(data_root=str(folder / "data"))
    model: dict[str, Any] = dict(backbone=dict(init_cfg=None))  # there are no pretrained weights
    options: dict[str, Any] = dict(NO_VALIDATION)
    if run.quick:
        pipeline = {"2": dict(scale=(96, 64)), "3": dict(crop_size=(32, 32))}
        dataset["pipeline"] = pipeline
        model["backbone"] |= dict(depth=18, num_stages=1, strides=(1,), dilations=(1,))
        model["backbone"] |= dict(out_indices=(0,), norm_cfg=dict(type="BN"))
        model["decode_head"] = dict(in_channels=64, in_index=0, norm_cfg=dict(type="BN"))
        model["decode_head"] |= dict(channels=16, ea_channels=16, memory_size=8)
        model |= dict(auxiliary_head=None, data_preprocessor=dict(size=(32, 32)))
        options["crop_size"] = (32, 32)
    loader = dict(batch_size=one.batch, num_workers=one.workers, dataset=dataset)
    loader["persistent_workers"] = one.workers > 0
    options |= dict(model=model, train_dataloader=loader, train_cfg=dict(max_iters=last))
    options["default_hooks"] = dict(checkpoint=dict(interval=10**6, save_last=False))
    options["experiment_name"] = f"loop{time.time_ns()}"  # mmengine's globals have this name
    return options


def loader_rate(runner: Runner) -> float:
    """Return the images per second of the run's loader, after a batch of each worker."""
    settings = runner.cfg.train_dataloader
    batches = iter(runner.build_dataloader(settings))
    workers = max(settings.num_workers, 1)
    for _ in range(workers):
        next(batches)
    begin = time.perf_counter()
    for _ in range(2 * workers):
        next(batches)
    return 2 * workers * settings.batch_size / (time.perf_counter() - begin)
