"""Parameters and multiply-adds of a config's network, and tables of costs."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS

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


def count_config(path: Path) -> Cost:
    """Count the parameters and multiply-adds of a config's model for a crop.

    These are backbone, neck and decode head; resizing the logits is not counted.
    """
    config = load_settings(str(path))
    settings = {**config.model, "auxiliary_head": None, "pretrained": None, "train_cfg": None}
    with torch.device("meta"):
        model = revert_sync_batchnorm(MODELS.build(settings)).eval()
        images = torch.empty(1, 3, *config.crop_size)
        counted = count_multiply_adds(model, images)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(path.stem, tuple(images.shape), parameters, counted.modules, counted.all)


def machine(device: str | torch.device = "cpu") -> str:
    """Describe the device that runs measurements, in a few words."""
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{os.cpu_count()}-core {platform.machine()} CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"


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
