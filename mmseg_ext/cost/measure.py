"""Measuring: paired timings, peak memory above the start, and multiply-adds in two conventions."""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from mmseg_ext.layers.lambda_layer import LambdaLayer

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def paired_times(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call, the functions taking turns so that a drifting machine is fair to all.

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


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS} has no field {field}")


def peak_memory(function: Callable[[], object], device: str | torch.device = "cpu") -> int:
    """Bytes that one call needs above what was held at its start.

    On a GPU this is the allocator's peak. On the CPU it is the process's peak resident set, whose
    high-water mark Linux lets a process reset; elsewhere a RuntimeError is raised. The first call
    of a kernel also loads libraries: call the function once before.
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


def held_peak(device: str | torch.device = "cpu") -> int:
    """Bytes that the process held at the peak of the last `peak_memory`, its start included."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated()
    return _status_bytes("VmHWM")


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one forward.

    `modules` counts what convolutions and linear layers are called with, the convention of mmcv's
    `get_model_complexity_info` and of most papers' segmentation tables: products of attention
    are left out. `all` counts every convolution and matrix product that runs. A lambda layer counts
    as the paper's dense form (`lambda_multiply_adds`), whichever way it runs: its products
    over positions and its Fourier transforms are no matrix products.
    """

    modules: int
    all: int


def _fused_attention_flops(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *args, **kwargs
) -> int:
    return sdpa_flop_count(query, key, value)


def _product_in_place_flops(
    addend: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...], *args, **kwargs
) -> int:
    return 2 * math.prod(left) * right[-1]


# Missing in torch's own table, which has the kernels of the other devices and `baddbmm`.
_MORE_KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flops,
    torch.ops.aten.baddbmm_: _product_in_place_flops,
}


def lambda_multiply_adds(layer: LambdaLayer, height: int, width: int) -> int:
    """Multiply-adds of the lambdas of one H x W map in the paper's dense form.

    Those of the projection are not among them: a counter of modules sees that one. Taps on the zero
    padding count, as for convolutions. In the global form all positions meet each other.
    """
    positions = height * width
    pairs = layer.key_depth * layer.value_depth
    per_position = pairs * (layer.intra_depth + layer.num_heads) if layer.content else 0
    if layer.embeddings is not None:
        taps = positions if layer.resolution is not None else layer.receptive_field**2
        per_position += pairs * (layer.intra_depth * taps + layer.num_heads)
    return positions * per_position


def count_multiply_adds(model: nn.Module, *args) -> MultiplyAdds:
    """Multiply-adds of `model(*args)`, the same on every device, the meta device included."""
    hooked = 0  # of convolutions and linear layers
    lambdas = 0  # of lambda layers, their projections among them
    flops_inside = 0  # seen by the counter in lambda layers
    starts: list[tuple[int, int]] = []

    def count(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        nonlocal hooked
        if not isinstance(module, kinds):
            return
        if isinstance(module, nn.Linear):
            hooked += output.numel() * module.in_features
        elif isinstance(module, nn.modules.conv._ConvTransposeNd):
            hooked += inputs[0].numel() * module.weight[0].numel()
        else:
            hooked += output.numel() * module.weight[0].numel()

    def enter(layer: LambdaLayer, inputs: tuple) -> None:
        starts.append((hooked, counter.get_total_flops()))

    def leave(layer: LambdaLayer, inputs: tuple, output: torch.Tensor) -> None:
        nonlocal lambdas, flops_inside
        hooked_before, flops_before = starts.pop()
        batch, _, height, width = inputs[0].shape
        lambdas += hooked - hooked_before + batch * lambda_multiply_adds(layer, height, width)
        flops_inside += counter.get_total_flops() - flops_before

    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    # For all modules of the process: with a hook of its own a module would not be composed.
    handles = [register_module_forward_hook(count)]
    for layer in (m for m in model.modules() if isinstance(m, LambdaLayer)):
        handles += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    counter = FlopCounterMode(display=False, custom_mapping=_MORE_KERNELS)
    try:
        with torch.no_grad(), counter:
            model(*args)
    finally:
        for handle in handles:
            handle.remove()
    seen = (counter.get_total_flops() - flops_inside) // 2
    return MultiplyAdds(modules=hooked, all=seen + lambdas)
