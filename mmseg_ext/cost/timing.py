"""Time and peak memory of functions that alternate in one process."""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

MEBI = 2**20


class Result(NamedTuple):
    """Median milliseconds, median of time / first function's time, peak MiB above the start."""

    ms: float
    ratio: float
    mib: float


def compare_times(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    device: str | torch.device = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Result]:
    """Measure time and memory of each function, after one round of warm-up.

    The functions alternate, so a machine that gets slower affects all of them. With
    `clock=time.process_time` other processes on the CPU do not count.
    """
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(1 + rounds):
        for name, function in functions.items():
            synchronize()
            start = clock()
            function()
            synchronize()
            if i > 0:
                seconds[name].append(clock() - start)
    first = next(iter(seconds.values()))
    results = {}
    for name, times in seconds.items():
        ratio = statistics.median(t / f for t, f in zip(times, first, strict=True))
        memory = peak_memory(functions[name], device) / MEBI
        results[name] = Result(1e3 * statistics.median(times), ratio, memory)
    return results


def peak_memory(function: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Measure the bytes that one call needs in addition to those in use before it.

    On a GPU this is the allocator's peak; on a CPU it is the peak resident set, and nan outside
    Linux. Call the function once before: the first call of a kernel also loads libraries.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - start
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


def inference_step(function: Callable[[Tensor], object], x: Tensor) -> Callable[[], object]:
    """Return a function that runs `function(x)` without gradients; a module in eval mode."""
    if isinstance(function, nn.Module):
        function.eval()
    return torch.no_grad()(lambda: function(x))


def training_step(
    function: Callable[[Tensor], object], x: Tensor, parameters: Iterable[Tensor] = ()
) -> Callable[[], object]:
    """Return a function that runs forward and backward, for the input and the parameters.

    A module runs in training mode, with its own parameters.
    """
    if isinstance(function, nn.Module):
        parameters = function.train().parameters()
    x = x.detach().requires_grad_()
    leaves = [x, *(p for p in parameters if p.requires_grad)]

    def run() -> object:
        outputs = function(x)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        # The gradient of a real loss takes memory; a sum's is one expanded number.
        return torch.autograd.grad(outputs, leaves, [torch.ones_like(y) for y in outputs])

    return run
