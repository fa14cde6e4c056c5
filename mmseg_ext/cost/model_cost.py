"""What a config's network costs: parameters, multiply-adds, time and memory of a forward."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.cost.timing import compare_times, inference_step
from mmseg_ext.engine.launch import load_settings


@dataclass
class Cost:
    """What a network needs for one input: milliseconds and MiB, None until they are measured."""

    name: str
    input_shape: Sequence[int]
    parameters: int
    module_multiply_adds: int
    all_multiply_adds: int
    inference_ms: float | None = None
    inference_mib: float | None = None


class _Network(nn.Module):
    """Backbone, neck and decode head; gives scores on the head's own map."""

    def __init__(self, model: dict):
        super().__init__()
        model = {**model, "auxiliary_head": None, "pretrained": None, "train_cfg": None}
        self.segmentor = revert_sync_batchnorm(MODELS.build(model))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.segmentor.decode_head(self.segmentor.extract_feat(images))


def count_config(path: Path) -> Cost:
    """`count_model` of a config's model and crop, under the config's name."""
    config = load_settings(str(path))
    return count_model(path.stem, config.model, config.crop_size)


def count_model(name: str, model: dict, size: Sequence[int]) -> Cost:
    """Parameters and multiply-adds of a config's `model` on one crop of `size` (H, W)."""
    with torch.device("meta"):
        network, images = _Network(model).eval(), torch.empty(1, 3, *size)
        counted = count_multiply_adds(network, images)
    parameters = sum(p.numel() for p in network.parameters())
    return Cost(name, tuple(images.shape), parameters, counted.modules, counted.all)


def measure_config(path: Path, cost: Cost, rounds: int, batch: int = 1, **placement) -> None:
    """Fill in time and memory of a forward of `batch` crops; `placement` goes to `Module.to`."""
    config = load_settings(str(path))
    network = _Network(config.model).to(**placement)
    images = torch.randn(batch, 3, *config.crop_size).to(**placement)
    (result,) = compare_times({"": inference_step(network, images)}, rounds, images.device).values()
    cost.inference_ms, cost.inference_mib = result.ms, result.mib


def machine(device: str | torch.device = "cpu") -> str:
    """What the numbers were measured on, in a few words."""
    version = torch.__version__.split("+")[0]
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {version}"
    name = f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} CPU"
    return f"{name}, {torch.get_num_threads()} threads, torch {version}"


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
    """A Markdown table; all columns but the first are aligned to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
