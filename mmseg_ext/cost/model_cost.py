"""Parameters and multiply-adds of networks, and tables of costs.

PyTorch's operator counter counts scaled dot-product attention, mmengine's `FlopAnalyzer` does not.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from mmseg_ext.atomic_write import write_text
from mmseg_ext.engine.build import build_segmentor
from mmseg_ext.engine.build_errors import explained_without_data
from mmseg_ext.engine.config import crop_size, input_channels, load_config
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.reports.run_data import COST
from mmseg_ext.torch_versions import existing_kernels


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one forward pass.

    `modules` counts convolution and linear modules, like mmcv's `get_model_complexity_info` and the
    segmentation tables of most papers; products inside attention are missing. It counts modules
    whose weights are used without a call as called, so it can be larger than `all`. `all` counts
    every convolution and matrix product that runs. It counts a lambda layer as the paper's dense
    form, because the fast forms do not run it as matrix products.
    """

    modules: int
    all: int


def count_multiply_adds(model: nn.Module, x: Tensor) -> MultiplyAdds:
    """Count the multiply-adds of `model(x)`; the result is the same on every device, also meta."""
    root = type(model).__name__
    forward = torch.no_grad()(lambda: model(x))
    total, products = count_products(forward)
    counted: dict[str, nn.Module] = {}  # the convolution and linear modules
    for path, module in model.named_modules(remove_duplicate=False):  # the counter uses any name
        name = f"{root}.{path}" if path else root
        if isinstance(module, LambdaLayer):
            projection = products[f"{name}.qkv"]
            positions = projection // (len(x) * module.qkv.weight.numel())
            dense = len(x) * _dense_products(module, positions)
            total += projection + dense - products[name]
        elif isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            counted[name] = module
    if not all(products[name] for name in counted):
        # Layers that compute with the weights of their modules call modules that have hooks.
        hooks = [m.register_forward_hook(lambda *args: None) for m in counted.values()]
        _, products = count_products(forward)
        for hook in hooks:
            hook.remove()
    return MultiplyAdds(sum(products[name] for name in counted), total)


def _dense_products(layer: LambdaLayer, positions: int) -> int:
    """Return the multiply-adds of the paper's form: no projection, and taps on padding count."""
    taps = positions if layer.receptive_field is None else layer.receptive_field**2
    content, position = layer.intra_depth + 2 * layer.num_heads, layer.intra_depth * taps
    return positions * layer.key_depth * layer.value_depth * (content + position)


def count_products(run: Callable[[], object]) -> tuple[int, Counter[str]]:
    """Count the multiply-adds of the products in `run()`, and in each module by name."""
    with FlopCounterMode(display=False, custom_mapping=_MORE_KERNELS) as counter:
        run()
    products: Counter[str] = Counter()
    for name, flops_of_kinds in counter.get_flop_counts().items():
        products[name] = sum(flops_of_kinds.values()) // 2
    return counter.get_total_flops() // 2, products


# Kernels that torch's own table lacks, with functions of the shapes of their arguments.
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"  # of query, key, value, ...
_MORE_KERNELS = existing_kernels(
    {
        _ATTENTION: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        f"{_ATTENTION}_backward": lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
        "baddbmm_": lambda addend, left, right, **_: 2 * math.prod(left) * right[-1],
    }
)


@dataclass
class Cost:
    """Parameters and multiply-adds of a network for one input."""

    input_shape: Sequence[int]
    parameters: int
    module_multiply_adds: int
    all_multiply_adds: int


def count_config(path: Path, options: dict | None = None) -> Cost:
    """Count the parameters and multiply-adds of the model of a config file; see `count_model`."""
    return count_model(load_config(str(path), options))


def count_model(config: Config) -> Cost:
    """Count the parameters and multiply-adds of a config's model for a crop.

    These are backbone, neck and decode head; resizing the logits is not counted.
    """
    with torch.device("meta"):
        model = build_segmentor(config).eval()
        model.auxiliary_head = None
        images = torch.empty(1, input_channels(config.model), *crop_size(config))
        with explained_without_data(config):
            counted = count_multiply_adds(model, images)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Cost(tuple(images.shape), parameters, counted.modules, counted.all)


def write_cost(runner: Any) -> None:
    """Write parameters and multiply-adds to a run's log folder, for the report."""
    if not is_main_process():
        return
    try:
        cost = count_model(runner.cfg)
    except Exception:  # a model that runs only with data, such as MaskFormer; the run has succeeded
        return
    height, width = cost.input_shape[2:]
    multiply_adds = f"{cost.all_multiply_adds / 1e9:.2f} GMAC at {height}x{width}"
    facts = {"parameters": f"{cost.parameters / 1e6:.2f} M", "multiply-adds": multiply_adds}
    write_text(json.dumps(facts), Path(runner.log_dir, COST))


HEADINGS = ["config", "crop", "parameters, M", "GMAC, modules", "GMAC, all"]


def cells(name: str, cost: Cost) -> list[str]:
    """Return the row under `HEADINGS`."""
    height, width = cost.input_shape[2:]
    return [
        f"`{name}`",
        f"{height}x{width}",
        f"{cost.parameters / 1e6:.2f}",
        f"{cost.module_multiply_adds / 1e9:.2f}",
        f"{cost.all_multiply_adds / 1e9:.2f}",
    ]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with all columns but the first aligned to the right."""
    alignments = [":--"] + ["--:"] * (len(headings) - 1)
    table = ""
    for row in (headings, alignments, *rows):
        table += f"| {' | '.join(row)} |\n"
    return table
