"""What a network costs: parameters, multiply-adds, and the time and memory of a forward.

A config's network is backbone, neck and decode head, without the auxiliary head. It gives scores
on the head's own map.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext.cost.contest import contest, inference_step
from mmseg_ext.cost.multiply_adds import count_multiply_adds


@dataclass
class Cost:
    """What a module needs for one input of `input_shape`.

    Times in milliseconds, memory in MiB above what was held before the call; None where nothing
    was measured.
    """

    name: str
    input_shape: Sequence[int]
    parameters: int
    module_multiply_adds: int
    all_multiply_adds: int
    inference_ms: float | None = None
    inference_mib: float | None = None


def count_cost(name: str, module: nn.Module, x: Tensor) -> Cost:
    """Parameters and multiply-adds of a module on `x`; nothing is measured. Sets eval mode."""
    counted = count_multiply_adds(module.eval(), x)
    parameters = sum(p.numel() for p in module.parameters())
    return Cost(name, tuple(x.shape), parameters, counted.modules, counted.all)


def measure_cost(cost: Cost, module: nn.Module, x: Tensor, rounds: int = 5) -> None:
    """Fill in the median time and the peak memory of a forward of `x` in eval mode.

    Raises:
        RuntimeError: if `x` is on a CPU and the system is not Linux (`peak_memory`).
    """
    (result,) = contest({"": inference_step(module, x)}, rounds, x.device).values()
    cost.inference_ms, cost.inference_mib = result.ms, result.mib


class _Network(nn.Module):
    def __init__(self, model: dict):
        super().__init__()
        model = {**model, "auxiliary_head": None, "pretrained": None, "train_cfg": None}
        self.segmentor = revert_sync_batchnorm(MODELS.build(model))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.segmentor.decode_head(self.segmentor.extract_feat(images))


def count_config(path: Path) -> Cost:
    """Parameters and multiply-adds of one crop, under the config's name; allocates no weights."""
    config = Config.fromfile(path)
    return count_model(path.stem, config.model, config.crop_size)


def count_model(name: str, model: dict, size: Sequence[int]) -> Cost:
    """Parameters and multiply-adds of a config's `model` on one crop of `size` (H, W)."""
    with torch.device("meta"):
        return count_cost(name, _Network(model), torch.empty(1, 3, *size))


def measure_config(path: Path, cost: Cost, rounds: int, batch: int = 1, **placement) -> None:
    """Fill in the time and the memory of a forward of `batch` crops with random weights.

    `placement` is what `Module.to` takes: device, dtype, memory_format.
    """
    config = Config.fromfile(path)
    network = _Network(config.model).to(**placement)
    images = torch.randn(batch, 3, *config.crop_size).to(**placement)
    measure_cost(cost, network, images, rounds)


def machine(device: str | torch.device = "cpu") -> str:
    """What the numbers were measured on, in a few words."""
    version = torch.__version__.split("+")[0]
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {version}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = platform.machine().replace("_", "-")
    return f"{cores}-core {name} CPU, {torch.get_num_threads()} threads, torch {version}"


HEADINGS = ["config", "crop", "parameters, M", "GMAC, modules", "GMAC, all", "ms", "MiB"]


def cells(cost: Cost) -> list[str]:
    """The texts under `HEADINGS`."""
    height, width = cost.input_shape[2:]
    return [
        f"`{cost.name}`",
        f"{height}x{width}",
        f"{cost.parameters / 1e6:.2f}",
        f"{cost.module_multiply_adds / 1e9:.2f}",
        f"{cost.all_multiply_adds / 1e9:.2f}",
        "" if cost.inference_ms is None else f"{cost.inference_ms:,.0f}",
        "" if cost.inference_mib is None else f"{cost.inference_mib:,.0f}",
    ]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is aligned to the left, numbers to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
