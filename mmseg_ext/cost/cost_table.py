"""Parameters, multiply-adds, time and peak memory of attention blocks and whole heads, as tables.

Multiply-adds come in two conventions (`measure.MultiplyAdds`): those of convolution and linear
modules alone, and all of them, products of attention included.
"""

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmseg_ext.cost.attention_blocks import Entry
from mmseg_ext.cost.measure import count_multiply_adds, paired_times, peak_memory

MEBI = 2**20


@dataclass
class Cost:
    """What a module needs for one input of `input_shape`.

    Times in milliseconds, memory in MiB above what was held before the call; None where nothing
    was measured. What a paper says is in units of 2^20 and 10^9.
    """

    name: str
    input_shape: tuple[int, ...]
    parameters: int
    module_multiply_adds: int
    all_multiply_adds: int
    paper_parameters: float | None = None
    paper_multiply_adds: float | None = None
    inference_ms: float | None = None
    inference_mib: float | None = None
    training_ms: float | None = None
    training_mib: float | None = None
    remark: str = ""


def machine(device: str = "cpu") -> str:
    """What the numbers were measured on, in a few words."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = platform.machine().replace("_", "-")
    return (
        f"{cores}-core {name} CPU, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__.split('+')[0]}"
    )


def count_costs(entries: Mapping[str, Entry], shape: tuple[int, ...]) -> list[Cost]:
    """Parameters and multiply-adds of each entry on an input of `shape`; allocates nothing."""
    costs = []
    for name, entry in entries.items():
        with torch.device("meta"):
            cost = count_cost(name, entry.build(), torch.empty(shape), entry.fused)
        cost.paper_parameters, cost.paper_multiply_adds = entry.paper or (None, None)
        cost.remark = entry.remark
        costs.append(cost)
    return costs


def count_cost(name: str, module: nn.Module, x: Tensor, fused: bool = False) -> Cost:
    """Parameters and multiply-adds of a module on `x`, nothing measured; leaves it in eval mode."""
    counted = count_multiply_adds(module.eval(), x)
    return Cost(name, tuple(x.shape), _parameters(module, fused), counted.modules, counted.all)


def measure_inference(cost: Cost, module: nn.Module, x: Tensor, rounds: int = 5) -> None:
    """Fill in the median time and the peak memory of a forward of `x` in eval mode."""
    step = inference_step(module, x)
    seconds = paired_times({"": step}, rounds, warmup=1)[""]
    cost.inference_ms = 1e3 * statistics.median(seconds)
    cost.inference_mib = peak_memory(step, x.device) / MEBI


def _parameters(module: nn.Module, fused: bool) -> int:
    if not fused:
        return sum(p.numel() for p in module.parameters())
    weights = {k: v for k, v in module.state_dict().items() if v.is_floating_point()}
    return sum(v.numel() for k, v in weights.items() if "running_" not in k)


def inference_step(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """A call of the module in eval mode without gradients."""
    module.eval()

    def run() -> object:
        with torch.no_grad():
            return module(x)

    return run


def training_step(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """A forward in training mode and the gradients of its sum by input and parameters."""
    module.train()
    x = x.detach().requires_grad_()
    inputs = [x, *(p for p in module.parameters() if p.requires_grad)]

    def run() -> object:
        outputs = module(x)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        # Ones that take memory, as the gradients of a real loss do.
        grads = [torch.ones_like(output) for output in outputs]
        return torch.autograd.grad(outputs, inputs, grads)

    return run


def measure_costs(
    costs: list[Cost],
    entries: Mapping[str, Entry],
    shape: tuple[int, ...],
    rounds: int = 3,
    training: bool = False,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Fill in the times (medians, the entries taking turns) and peak memories of `costs`.

    With `training`, those of a training step, which a fused entry has not; without, inference.
    """
    step = training_step if training else inference_step
    x = torch.randn(shape, device=device, dtype=dtype)
    chosen = [cost for cost in costs if not (training and entries[cost.name].fused)]
    steps = {c.name: step(entries[c.name].build().to(device, dtype), x) for c in chosen}
    seconds = paired_times(steps, rounds, warmup=1)
    for cost in chosen:
        milliseconds = 1e3 * statistics.median(seconds[cost.name])
        mebibytes = peak_memory(steps[cost.name], device) / MEBI
        if training:
            cost.training_ms, cost.training_mib = milliseconds, mebibytes
        else:
            cost.inference_ms, cost.inference_mib = milliseconds, mebibytes


# Heading, and the text of a row's cell; a column without any text is left out.
_COLUMNS: list[tuple[str, Callable[[Cost], str]]] = [
    ("", lambda c: c.name),
    ("parameters", lambda c: f"{c.parameters:,}"),
    ("in 2^20", lambda c: f"{c.parameters / MEBI:.2f}"),
    ("paper", lambda c: _number(c.paper_parameters, ".2f")),
    ("GMAC, modules", lambda c: f"{c.module_multiply_adds / 1e9:.2f}"),
    ("GMAC, all", lambda c: f"{c.all_multiply_adds / 1e9:.2f}"),
    ("paper", lambda c: _number(c.paper_multiply_adds, "g")),
    ("inference, ms", lambda c: _number(c.inference_ms, ".1f")),
    ("inference, MiB", lambda c: _number(c.inference_mib, ".0f")),
    ("training, ms", lambda c: _number(c.training_ms, ".1f")),
    ("training, MiB", lambda c: _number(c.training_mib, ".0f")),
    ("", lambda c: c.remark),
]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is aligned to the left, numbers to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def cost_markdown(costs: list[Cost]) -> str:
    """The table of `costs`, measured and paper side by side; columns that are empty left out."""
    columns = [(heading, [text(c) for c in costs]) for heading, text in _COLUMNS]
    columns = [(heading, cells) for heading, cells in columns if any(cells)]
    rows = [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
    return markdown([heading for heading, _ in columns], rows)
