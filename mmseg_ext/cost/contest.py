"""Functions that take turns in one process: their times, the ratios and the peak memory."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

MEBI = 2**20
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Result(NamedTuple):
    """What one function needs.

    `ms` is the median of the rounds in milliseconds, `over_first` the median over the rounds of its
    time over that of the first function, `mib` the peak of its memory in MiB above the start.
    """

    ms: float
    over_first: float
    mib: float


def contest(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    device: str | torch.device = "cpu",
) -> dict[str, Result]:
    """Time and memory of every function, by name.

    Raises:
        RuntimeError: if the device is a CPU and the system is not Linux (`peak_memory`).
    """
    seconds = paired_times(functions, rounds)
    first = next(iter(seconds.values()))
    return {
        name: Result(
            1e3 * statistics.median(seconds[name]),
            median_ratio(seconds[name], first),
            peak_memory(function, device) / MEBI,
        )
        for name, function in functions.items()
    }


def paired_times(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call. The functions take turns, so a drifting machine is fair to all.

    Entry i of every list comes from the same round, so ratios are taken pair by pair. The clock
    `time.process_time` leaves out what other processes take of the CPU.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(warmup + rounds):
        for name, function in functions.items():
            _synchronise()
            start = clock()
            function()
            _synchronise()
            if i >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """Median over the rounds of `paired_times` of one function's time over another's."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def peak_memory(function: Callable[[], object], device: str | torch.device = "cpu") -> int:
    """Bytes that one call needs above what the process held at its start.

    On a GPU this is the allocator's peak. On a CPU it is the process's peak resident set, whose
    high-water mark Linux lets a process reset; `resource.getrusage` cannot. The first call of a
    kernel also loads libraries: call the function once before.

    Raises:
        RuntimeError: if the device is a CPU and the system is not Linux.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - start
    if not _CLEAR_REFS.exists():
        raise RuntimeError("peak memory on the CPU is read from /proc, which only Linux has")
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator keeps would hide a peak
    _CLEAR_REFS.write_text("5")  # resets VmHWM to the current resident set
    start = _status_bytes("VmRSS")
    function()
    return _status_bytes("VmHWM") - start


def inference_step(function: Callable[[Tensor], object], x: Tensor) -> Callable[[], object]:
    """A call of a module, in eval mode, or of another function; without gradients."""
    if isinstance(function, nn.Module):
        function.eval()

    def run() -> object:
        with torch.no_grad():
            return function(x)

    return run


def training_step(
    function: Callable[[Tensor], Tensor | Iterable[Tensor]],
    x: Tensor,
    parameters: Iterable[Tensor] | None = None,
) -> Callable[[], object]:
    """A forward, and the gradients of the outputs' sum by the input and the parameters.

    A module is put into training mode and brings its own parameters; those of any other function
    are given.
    """
    if isinstance(function, nn.Module):
        function.train()
        parameters = function.parameters() if parameters is None else parameters
    x = x.detach().requires_grad_()
    leaves = [x, *(p for p in parameters or () if p.requires_grad)]

    def run() -> object:
        outputs = function(x)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        # Ones that take memory, as the gradients of a real loss do.
        grads = [torch.ones_like(output) for output in outputs]
        return torch.autograd.grad(outputs, leaves, grads)

    return run


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _status_bytes(field: str) -> int:
    line = next(s for s in _STATUS.read_text().splitlines() if s.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
