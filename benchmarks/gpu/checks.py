"""The stages that measure no time: is everything right on this device?"""

import collections
import json
import math
import multiprocessing
import os
import signal
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.stage import Row, Run, attempt
from benchmarks.training_step import SEGMENTORS, deterministic_step, small_segmentor
from mmseg_ext import register_all_modules
from mmseg_ext.doctor import fixtures
from mmseg_ext.doctor.checks import checks
from mmseg_ext.engine.build import build_test_runner, build_train_runner
from mmseg_ext.errors import RunError

PACKAGES = ("mmseg_ext", "mmseg", "mmengine", "mmcv")
# Processes are forked: they have the imports. Before, this process must not touch CUDA, nor compute
# with several threads, which a forked process would wait for.
FORK = multiprocessing.get_context("fork")


def parity(run: Run) -> Iterator[Row]:
    """Run the doctor's parity, and steps of each head and backbone that must be deterministic."""
    device = torch.device(run.device)
    warnings.simplefilter("ignore", UserWarning)
    for name in list(SEGMENTORS)[: 1 if run.quick else None]:
        yield attempt({"check": f"deterministic=True: {name}"}, repeated_step, name, device)
    found = [check for check in checks(device) if check[0] == "parity"]
    found.sort(key=lambda check: check[1].split(",")[0] in fixtures.BACKBONES)  # the slow ones last
    for group, name, function in found[: 10 if run.quick else None : 4 if run.quick else 1]:
        yield attempt({"check": f"{group}: {name}"}, lambda f=function: f()._asdict())


def repeated_step(name: str, device: torch.device) -> Row:
    """Train a step twice, with an error for every operation that is not deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    loss, gradients = deterministic_step(name, device)
    _, again = deterministic_step(name, device)
    equal = all(map(torch.equal, gradients, again))
    figure = f"loss {loss:.4f}" if equal else "the gradients of the second step differ"
    return {"status": "ok" if equal else "FAIL", "figure": figure}


class KillAt(Hook):
    """End this process by SIGKILL after an iteration."""

    priority = "LOWEST"

    def __init__(self, iteration: int):
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)


def shapes_options(folder: Path, run: Run, workers: int) -> dict:
    """Return options of ea_r18_shapes for a run on data in `folder`."""
    recipe = dict(train=16, val=5) if run.quick else {}
    data = dict(data_root=str(folder / "data"), recipe=recipe)
    loader = dict(num_workers=workers, persistent_workers=workers > 0, dataset=data)
    options: dict = {f"{split}_dataloader": loader for split in ("train", "val", "test")}
    return options | dict(log_level="WARNING")


STEPS = 4  # of the trainings in two processes
NO_VALIDATION = {
    f"{split}_{key}": None
    for split in ("val", "test")
    for key in ("dataloader", "cfg", "evaluator")
}


def start(function: Callable, *arguments: object, **environment: str) -> BaseProcess:
    """Start `function(*arguments)` in a forked process with these environment variables."""

    def body() -> None:
        os.environ.update(environment)
        try:
            function(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)  # without gloo's threads

    process = FORK.Process(target=body)
    process.start()
    return process


def fit(options: dict, work: Path, resume: bool = False, kill: int = 0, launcher="none") -> None:
    """Train ea_r18_shapes, and write the scores to `work/scores.json`."""
    register_all_modules()
    options = {**options, "experiment_name": f"{work.name}{time.time_ns()}"}
    runner = build_train_runner("ea_r18_shapes", options, str(work), launcher, resume)
    if kill:
        runner.register_hook(KillAt(kill))
    runner.train()
    scores = runner.message_hub.log_scalars.get("val/mIoU")
    (work / "scores.json").write_text(json.dumps(scores.current() if scores else None))


def training(run: Run) -> Iterator[Row]:
    """Train to the end, and next to it 60 deterministic iterations that are killed and resumed."""
    torch.set_num_threads(1)
    last, iterations, workers = (2, 6, 0) if run.quick else (1300, 60, 6)
    short: dict = dict(train_cfg=dict(max_iters=iterations), env_cfg=dict(cudnn_benchmark=False))
    short["default_hooks"] = dict(checkpoint=dict(interval=iterations // 3, max_keep_ckpts=9))
    short["randomness"] = dict(deterministic=True)
    # Processes that are out of time still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        long = shapes_options(folder, run, workers)
        long["train_cfg"] = dict(max_iters=last, val_interval=last)
        whole = start(fit, long, folder / "whole")
        options = {**shapes_options(folder, run, 1), **short, **NO_VALIDATION}
        straight = start(fit, options, folder / "straight")
        killed = start(fit, options, folder / "resumed", False, iterations // 2)
        ended(run, killed)
        again = start(fit, options, folder / "resumed", True)
        row: Row = {"check": "killed after half the iterations and resumed"}
        row["first start"] = f"exit status {killed.exitcode}"
        files = [folder / f"{run}/iter_{iterations}.pth" for run in ("straight", "resumed")]
        yield after(run, [straight, again], row, different_tensors, *files)
        row = {"check": "ea_r18_shapes, trained to its end"}
        yield after(run, [whole], row, lambda: {"mIoU": f"{scores_of(folder / 'whole'):.1f}"})


def after(run: Run, processes: list, row: Row, function: Callable, *arguments: object) -> Row:
    """Return `row` with the columns of `function(*arguments)`, called when the processes end."""
    if not ended(run, *processes):
        return {**row, "skipped": "did not end in time"}
    return attempt(row, function, *arguments)


def ended(run: Run, *processes: BaseProcess) -> bool:
    """Wait for processes as long as the stage has time."""
    for process in processes:
        process.join(max(run.left(), 0))
    return not any(process.is_alive() for process in processes)


def scores_of(work: Path) -> Any:
    return json.loads((work / "scores.json").read_text())


def different_tensors(one: Path, two: Path) -> Row:
    """Count the tensors of weights and optimizer that differ between two checkpoints."""
    contents = [torch.load(path, map_location="cpu", weights_only=True) for path in (one, two)]
    leaves = [tree_leaves([c["state_dict"], c["optimizer"]["state"]]) for c in contents]
    pairs = [pair for pair in zip(*leaves, strict=True) if isinstance(pair[0], torch.Tensor)]
    return {"tensors": len(pairs), "different": sum(not torch.equal(*pair) for pair in pairs)}


def ranks(several: bool, function: Callable, *arguments: object, restart: int = 0) -> list:
    """Start a function in two processes that talk; with one GPU both have it, and gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    common["TORCHELASTIC_RESTART_COUNT"] = str(restart)
    own = [dict(RANK=str(i), LOCAL_RANK=str(i if several else 0)) for i in range(2)]
    return [start(function, *arguments, **common, **env) for env in own]


def fit_killed(options: dict, work: Path) -> None:
    """Train in two processes; the second is killed."""
    fit(options, work, False, 3 if os.environ["RANK"] == "1" else 0, "pytorch")


def score(options: dict, checkpoint: Path, work: Path, launcher: str) -> None:
    """Test a checkpoint, and write the scores to `work/scores.json`."""
    register_all_modules()
    options = {**options, "experiment_name": f"{work.name}{time.time_ns()}"}
    words = ("ea_r18_shapes", str(checkpoint), options, str(work), launcher)
    scores = build_test_runner(*words).test()
    if os.environ.get("RANK", "0") == "0":
        kept = {key: float(value) for key, value in scores.items() if "time" not in key}
        (work / "scores.json").write_text(json.dumps(kept))


def several(run: Run) -> Iterator[Row]:
    """Compare two processes with a single one; kill the second, and restart both."""
    torch.set_num_threads(1)
    two_gpus = run.on_gpu and torch.cuda.device_count() > 1
    backend = "nccl" if two_gpus else "gloo"
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # batches of two sizes would differ by TF32's rounding
    norm = dict(type="SyncBN") if run.on_gpu else dict(type="GN", num_groups=4, _delete_=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = shapes_options(folder, run, 0)
        for split in ("train", "val", "test"):
            options[f"{split}_dataloader"]["dataset"]["recipe"] = dict(train=16, val=5)
        options |= dict(train_cfg=dict(max_iters=STEPS, val_interval=STEPS))
        head = dict(dropout_ratio=0.0, norm_cfg=norm)
        options["model"] = dict(backbone=dict(norm_cfg=norm), decode_head=head)
        options["optim_wrapper"] = dict(optimizer=dict(_delete_=True, type="SGD", lr=0.01))
        options["env_cfg"] = dict(cudnn_benchmark=False, dist_cfg=dict(backend=backend))
        options["randomness"] = dict(deterministic=True)  # a restart is compared bit by bit
        options["default_hooks"] = dict(checkpoint=dict(interval=2, max_keep_ckpts=9))
        half = {**options, "train_dataloader": {**options["train_dataloader"], "batch_size": 4}}
        title = {"processes": f"two, {backend}, {'two GPUs' if two_gpus else run.device}"}

        one = start(fit, options, folder / "one")
        ended(run, one)  # it generates the data
        two = ranks(two_gpus, fit, half, folder / "two", False, 0, "pytorch")
        words = (options, folder / f"one/iter_{STEPS}.pth")
        tests = [start(score, *words, folder / "first", "none")]
        tests += ranks(two_gpus, score, *words, folder / "second", "pytorch")
        killed = ranks(two_gpus, fit_killed, half, folder / "killed")
        ended(run, killed[1])
        begin = time.monotonic()
        killed[0].join(min(30, max(run.left(), 0)))
        waited = f"{time.monotonic() - begin:.0f} s"
        killed[0].kill()  # as torchrun does
        again = ranks(two_gpus, fit, half, folder / "killed", True, 0, "pytorch", restart=1)

        files = [folder / f"{work}/iter_{STEPS}.pth" for work in ("one", "two", "killed")]
        row: Row = {**title, "check": "weights, next to one process"}
        yield after(run, [one, *two], row, largest_difference, *files[:2])
        row = {**title, "check": "scores of five images"}
        yield after(run, tests, row, same_scores, folder)
        row = {**title, "check": "the second is killed, both restart"}
        row |= {"first start": f"exit status {killed[1].exitcode}", "the first ended after": waited}
        yield after(run, [*two, *again], row, different_tensors, *files[1:])


def same_scores(folder: Path) -> Row:
    first, second = (scores_of(folder / work) for work in ("first", "second"))
    return {"mIoU": f"{first['mIoU']:.1f}", "equal": first == second}


def largest_difference(one: Path, two: Path) -> Row:
    """Return the largest difference of a weight, relative to its tensor's largest value or 0.01.

    Some norms start at zero, and their first gradients are sums that nearly cancel.
    """
    first, second = (torch.load(p, map_location="cpu", weights_only=True) for p in (one, two))
    worst, where = 0.0, ""
    for key, value in first["state_dict"].items():
        scale = value.double().abs().max().clamp(min=0.01)
        error = ((value.double() - second["state_dict"][key].double()).abs().max() / scale).item()
        worst, where = max((worst, where), (error, key))
    return {"difference": f"{worst:.1e}", "tensor": where}


def graph(run: Run) -> Iterator[Row]:
    """Validate inside a training with a CUDA graph; stop at a loss of nan.

    Algorithms are deterministic, so one bit that differs from a run without a graph is a fault. On
    a CPU no step is captured, which tests only this function.
    """
    torch.set_num_threads(1)
    iterations = 4 if run.quick else 20
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = shapes_options(folder, run, 0)
        options |= dict(train_cfg=dict(max_iters=iterations, val_interval=iterations // 2))
        options |= dict(randomness=dict(deterministic=True), env_cfg=dict(cudnn_benchmark=False))
        eager = start(fit, options, folder / "eager")
        ended(run, eager)  # it generates the data
        graphed = start(fit, {**options, "cuda_graph": True}, folder / "graphed")
        spoiled = start(fit_to_nan, {**options, **NO_VALIDATION}, folder / "spoiled")
        files = [folder / f"{work}/iter_{iterations}.pth" for work in ("eager", "graphed")]
        row: Row = {"check": "a validation inside a training with a graph"}
        yield after(run, [graphed], row, different_tensors, *files)
        row = {"check": "a loss of nan with fused steps"}
        yield after(run, [spoiled], row, lambda: scores_of(folder / "spoiled"))


def fit_to_nan(options: dict, work: Path) -> None:
    """Train until the loss of the third iteration is nan; write how the run ended."""
    register_all_modules()
    runner = build_train_runner("ea_r18_shapes", options, str(work))
    model: Any = runner.model
    parse = model.parse_losses

    def spoiled(losses: dict) -> tuple:
        loss, logged = parse(losses)
        return loss * (math.nan if runner.iter == 2 else 1), logged

    model.parse_losses = spoiled
    try:
        runner.train()
        stop = "none"
    except RunError as error:
        stop = str(error)
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    (work / "scores.json").write_text(json.dumps({"stop": stop, "finite weights": finite}))


def syncs(run: Run) -> Iterator[Row]:
    """List the lines of each family's training and test iteration that wait for the GPU."""
    device = torch.device(run.device)
    names = list(SEGMENTORS)[: 2 if run.quick else None]
    for name in names:
        yield attempt({"model": name}, waiting_lines, name, device)


def waiting_lines(name: str, device: torch.device) -> Row:
    model, images, samples = small_segmentor(name, device)
    wrapper = OptimWrapper(torch.optim.AdamW(model.parameters()))

    def step() -> None:
        wrapper.update_params(model.parse_losses(model(images, samples, mode="loss"))[0])

    def test() -> None:
        with torch.no_grad():
            model(images, samples, mode="predict")

    found = {}
    for mode, function in (("training", step), ("test", test)):
        model.train(mode == "training")
        function()  # the first call fills caches
        found[mode] = "; ".join(f"{line} x{n}" for line, n in lines_of(function, device).items())
    return {mode: lines or "none" for mode, lines in found.items()}


def lines_of(function: Callable[[], None], device: torch.device) -> collections.Counter:
    """Return the lines of mm packages that wait for the GPU, with how often they do."""
    found: collections.Counter = collections.Counter()

    def note(message, *_, **__) -> None:
        if "synchroniz" in str(message):
            lines = [(Path(f.filename).parts, f.lineno) for f in traceback.extract_stack()[:-1]]
            own = [(parts, line) for parts, line in lines if {*parts} & {*PACKAGES}]
            parts, line = (own or lines)[-1]
            first = max((i for i, part in enumerate(parts) if part in PACKAGES), default=-2)
            found[f"{'/'.join(parts[first:])}:{line}"] += 1

    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")  # warns, with this word, that it is a prototype
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        try:
            function()
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    return found
