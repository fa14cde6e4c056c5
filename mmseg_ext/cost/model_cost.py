"""Parameters and multiply-adds of a config's network, and tables of costs."""

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
from mmseg_ext.engine.launch import load_settings


@dataclass
class Cost:
    """Parameters and multiply-adds of a network for one input."""

    name: str
    input_shape: Sequence[int]
    parameters: int
    module_multiply_adds: int
    all_multiply_adds: int


class _Network(nn.Module):
    """Backbone, neck and decode head, without resizing the logits."""

    def __init__(self, model: dict):
        super().__init__()
        model = {**model, "auxiliary_head": None, "pretrained": None, "train_cfg": None}
        self.segmentor = revert_sync_batchnorm(MODELS.build(model))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.segmentor.decode_head(self.segmentor.extract_feat(images))


def count_config(path: Path) -> Cost:
    """Count the parameters and multiply-adds of a config's model for a crop."""
    config = load_settings(str(path))
    return count_model(path.stem, config.model, config.crop_size)


def count_model(name: str, model: dict, size: Sequence[int]) -> Cost:
    """Count the parameters and multiply-adds of a `model` for an image of `size` (H, W)."""
    with torch.device("meta"):
        network, images = _Network(model).eval(), torch.empty(1, 3, *size)
        counted = count_multiply_adds(network, images)
    parameters = sum(p.numel() for p in network.parameters())
    return Cost(name, tuple(images.shape), parameters, counted.modules, counted.all)


def machine(device: str | torch.device = "cpu") -> str:
    """Describe the device that runs measurements, in a few words."""
    version = torch.__version__.split("+")[0]
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {version}"
    name = f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} CPU"
    return f"{name}, {torch.get_num_threads()} threads, torch {version}"


HEADINGS = ["config", "crop", "parameters, M", "GMAC, modules", "GMAC, all"]


def cells(cost: Cost) -> list[str]:
    """Return the row under `HEADINGS`."""
    height, width = cost.input_shape[2:]
    return [
        f"`{cost.name}`",
        f"{height}x{width}",
        f"{cost.parameters / 1e6:.2f}",
        f"{cost.module_multiply_adds / 1e9:.2f}",
        f"{cost.all_multiply_adds / 1e9:.2f}",
    ]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with all columns but the first aligned to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
