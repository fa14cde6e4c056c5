"""Time, memory and size of models in training, measured while they take turns.

`compare_times` measures functions. `measure` builds the trainings of configs and measures their
iterations, so it also finds a config that does not build before anything trains.
"""

import ctypes
import gc
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger

from mmseg_ext.cost.model_cost import count_model
from mmseg_ext.durable.levers import compile_loss, prepare_training
from mmseg_ext.durable.optimizer_groups import select_fused_steps, single_wrappers
from mmseg_ext.engine.build import build_train_runner, safely
from mmseg_ext.engine.build_errors import explained
from mmseg_ext.errors import LaunchError, format_error

MEBI = 2**20
_ROUNDS, _SECONDS = 12, 60  # iterations of each config; fewer, but three, if they take longer


class Result(NamedTuple):
    """Median milliseconds, median of time / first function's time, peak MiB above the start."""

    ms: float
    ratio: float
    mib: float


def compare_times(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    device: str = "cpu",
    seconds: float = math.inf,
) -> dict[str, Result]:
    """Measure time and memory of each function, after one round of warm-up.

    The functions take turns, so a machine that gets slower affects all of them. With one thread on
    a CPU the time is the processor's, to which other programs do not count. After so many `seconds`
    three rounds are enough.
    """
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter

    def seconds_of(function: Callable[[], object]) -> float:
        start = clock()
        function()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return clock() - start

    end, turns = time.perf_counter() + seconds, []
    while len(turns) < 1 + rounds and (len(turns) < 4 or time.perf_counter() < end):
        turns.append([*map(seconds_of, functions.values())])
    times = np.array(turns[1:])
    milliseconds, ratios = 1e3 * np.median(times, 0), np.median(times / times[:, :1], 0)
    memory = [peak_memory(function, device) / MEBI for function in functions.values()]
    results = map(Result, milliseconds.tolist(), ratios.tolist(), memory)
    return dict(zip(functions, results, strict=True))


def peak_memory(function: Callable[[], object], device: str = "cpu") -> float:
    """Measure the bytes that one call needs in addition to those in use before it.

    On a GPU this is the allocator's peak; on a CPU it is the peak resident set, and nan outside
    Linux. Call the function once before: the first call of a kernel also loads libraries.
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - start
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return math.nan
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator keeps would hide the peak
    reset.write_text("5")  # resets VmHWM to the current resident set
    start = _resident("VmRSS")
    function()
    return _resident("VmHWM") - start


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


class Cost(NamedTuple):
    """Time and memory of a training iteration; parameters, and multiply-adds of a crop.

    The memory is the peak above the weights. `multiply_adds` is 0 for a model that runs only with
    data. `epoch` is the number of iterations of an epoch.
    """

    seconds: float
    ratio: float  # to the seconds of the first config
    mib: float
    parameters: int
    multiply_adds: int
    epoch: int = 1


def measure(configs: Sequence[Path]) -> list[Cost]:
    """Build the trainings of these configs, and measure their iterations in turns.

    An iteration loads a batch and trains with it. Starting, validating and saving do not count.

    Raises:
        LaunchError: for a config that does not build or train; the message starts with its path.
    """
    steps, counts = {}, []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for config in configs:
        try:
            with tempfile.TemporaryDirectory() as folder:
                step, *count = _step_of(config, folder, device)
                step()
        except Exception as error:
            text = str(error) if isinstance(error, LaunchError) else format_error(error)
            raise LaunchError(f"{config}: {text}") from error
        steps[str(config)] = step
        counts.append(count)
    times = compare_times(steps, _ROUNDS, device, _SECONDS * len(steps))
    found = zip(times.values(), counts, strict=True)
    return [Cost(time.ms / 1e3, time.ratio, time.mib, *count) for time, count in found]


def _step_of(config: Path, folder: str, device: str) -> tuple[Callable[[], object], int, int, int]:
    """Return a function that trains an iteration, parameters, multiply-adds, and an epoch."""
    options: dict = {"randomness.seed": 0}
    if device == "cpu":  # workers would load images on other cores, whose time does not count
        options |= {"train_dataloader.num_workers": 0, "train_dataloader.persistent_workers": False}
    runner = build_train_runner(str(config), options, folder)
    MMLogger.get_current_instance().setLevel("WARNING")
    with safely(runner.cfg):  # a test split that cannot be scored would fail after the training
        tested: Any = cast(Any, runner.test_loop).dataloader.dataset
        if "gt_sem_seg" not in tested[0]["data_samples"]:
            raise LaunchError(
                "test_dataloader: its samples have no label maps; add LoadAnnotations to its "
                "pipeline, or use a split with labels"
            )
    wrapper: Any = runner.optim_wrapper  # settings until a training starts
    runner.optim_wrapper = wrapper = runner.build_optim_wrapper(wrapper)
    model: Any = runner.model
    with safely(runner.cfg, model):
        model.init_weights()
    for one in single_wrappers(wrapper):
        select_fused_steps(one.optimizer, model)
    compile_loss(runner)
    prepare_training(runner)
    model.train()
    batches = iter(runner.train_dataloader)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    try:
        multiply_adds = count_model(Config(runner.cfg.to_dict())).all_multiply_adds
    except Exception:  # a model that runs only with data, such as MaskFormer
        multiply_adds = 0

    def step() -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:  # the end of an epoch
            batches = iter(runner.train_dataloader)
            batch = next(batches)
        with explained(runner.cfg, model):
            model.train_step(batch, wrapper)

    return step, parameters, multiply_adds, len(runner.train_dataloader)
