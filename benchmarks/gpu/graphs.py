"""The stage that compares steps in a CUDA graph with steps without one, bit by bit.

    python -m benchmarks.gpu --out DIR --stages benchmarks.gpu.graphs:graph_equals_eager

Algorithms are deterministic, so one different bit is a fault. On a CPU no step is captured, which
tests only this module.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import Tensor

from benchmarks.gpu.checks import (
    NO_VALIDATION,
    after,
    different_tensors,
    ended,
    fit,
    shapes_options,
    start,
)
from benchmarks.gpu.stage import Row, Run, attempt
from mmseg_ext import register_all_modules
from mmseg_ext.cost.step_memory import batch_of, build_training_model
from mmseg_ext.durable.cuda_graph import GraphedStep
from mmseg_ext.durable.levers import to_channels_last
from mmseg_ext.engine.config import load_config

STEPS = 20
CASES = (
    ("ea_r18_shapes", "float32"),
    ("ea_r18_shapes", "bfloat16"),
    ("fpn_rmt_tiny_ade20k_80k", "float32"),
    ("fpn_rmt_tiny_ade20k_80k", "bfloat16"),
)


def graph_equals_eager(run: Run) -> Iterator[Row]:
    """Compare 20 steps, and a run that is killed and resumed."""
    yield from resumed_rows(run)  # its processes are forked, so this one has not touched CUDA
    for name, precision in CASES[: 1 if run.quick else None]:
        title: Row = {"check": f"{STEPS} steps", "config": name, "precision": precision}
        yield attempt(title, compare_steps, run, name, precision)


def resumed_rows(run: Run) -> Iterator[Row]:
    """Train ea_r18_shapes without graphs, with them, and with them in two starts."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = {**shapes_options(folder, run, 0), **NO_VALIDATION}
        options |= dict(train_cfg=dict(max_iters=STEPS), randomness=dict(deterministic=True))
        options |= dict(env_cfg=dict(cudnn_benchmark=False))
        options["default_hooks"] = dict(checkpoint=dict(interval=STEPS // 2, max_keep_ckpts=9))
        graphed = {**options, "cuda_graph": True}
        eager = start(fit, options, folder / "eager")
        ended(run, eager)  # it generates the data
        once = start(fit, graphed, folder / "once")
        killed = start(fit, graphed, folder / "twice", False, STEPS // 2 + 5)
        ended(run, killed)
        again = start(fit, graphed, folder / "twice", True)
        files = [folder / f"{work}/iter_{STEPS}.pth" for work in ("eager", "once", "twice")]
        row: Row = {"check": "a run of 20 iterations", "config": "ea_r18_shapes"}
        yield after(run, [once], row, different_tensors, *files[:2])
        row = {**row, "check": "killed and resumed", "first start": f"status {killed.exitcode}"}
        yield after(run, [again], row, different_tensors, files[0], files[2])


def compare_steps(run: Run, name: str, precision: str) -> Row:
    """Count the losses and the final tensors that differ with and without a graph."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    register_all_modules()
    config = load_config(name)
    if run.quick:
        config.train_dataloader.batch_size = 1
    torch.use_deterministic_algorithms(True)
    try:
        eager = train(run, config, precision, lambda model: model.train_step)
        graphed = train(run, config, precision, GraphedStep)
    finally:
        torch.use_deterministic_algorithms(False)
    pairs = [[*zip(*parts, strict=True)] for parts in zip(eager, graphed, strict=True)]
    losses, tensors = (sum(not torch.equal(*pair) for pair in part) for part in pairs)
    return {"losses": f"{losses} of {len(pairs[0])}", "tensors": f"{tensors} of {len(pairs[1])}"}


def train(
    run: Run, config: Config, precision: str, step_of: Callable[[Any], Callable]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the losses of 20 steps on random images, and the tensors of the model."""
    torch.manual_seed(0)  # also of the GPU, for stochastic depth
    device = torch.device(run.device)
    model = to_channels_last(build_training_model(config, device).to(device))
    settings = config.optim_wrapper.to_dict() | {"type": "OptimWrapper"}
    if precision == "bfloat16":
        settings |= {"type": "PortableAmpOptimWrapper", "dtype": precision}
    wrapper, step = build_optim_wrapper(model, settings), step_of(model)
    random = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(2 if run.quick else STEPS):
        batch = batch_of(config, torch.device("cpu"))
        for image, sample in zip(batch["inputs"], batch["data_samples"], strict=True):
            image.random_(256, generator=random)
            sample.gt_sem_seg.data.random_(2, generator=random)
        losses.append(step(batch, wrapper)["loss"].detach())
    return losses, [*model.state_dict().values()]
