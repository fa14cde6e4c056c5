"""What a config's network costs at its crop: parameters, multiply-adds, time, memory.

The network is backbone, neck and decode head, without the auxiliary head, and gives scores on the
head's own map.
"""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext.cost.cost_table import Cost, count_cost, markdown, measure_inference


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
    with torch.device("meta"):
        images = torch.empty(1, 3, *config.crop_size)
        return count_cost(path.stem, _Network(config.model), images)


def measure_config(path: Path, cost: Cost, rounds: int, batch: int = 1, **placement) -> None:
    """Fill in the time and the memory of a forward of `batch` crops with random weights.

    `placement` is what `Module.to` takes: device, dtype, memory_format.
    """
    config = Config.fromfile(path)
    network = _Network(config.model).to(**placement)
    images = torch.randn(batch, 3, *config.crop_size).to(**placement)
    measure_inference(cost, network, images, rounds)


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


def config_table(costs: list[Cost]) -> str:
    return markdown(HEADINGS, [cells(cost) for cost in costs])
