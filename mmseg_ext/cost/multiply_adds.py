"""Multiply-adds of a forward pass in two conventions, with PyTorch's operator counter.

mmengine's `FlopAnalyzer` does not count scaled dot-product attention.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from mmseg_ext.layers.lambda_layer import LambdaLayer


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one forward pass.

    `modules` counts convolution and linear modules, like mmcv's `get_model_complexity_info` and the
    segmentation tables of most papers; products inside attention are missing. `all` counts every
    convolution and matrix product. It counts a lambda layer as the paper's dense form
    (`lambda_multiply_adds`), because the fast forms do not run it as matrix products.
    """

    modules: int
    all: int


def count_multiply_adds(model: nn.Module, x: Tensor) -> MultiplyAdds:
    """Count the multiply-adds of `model(x)`; the result is the same on every device, also meta."""
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_MORE_KERNELS) as counter:
        model(x)
    counts = counter.get_flop_counts()
    root = type(model).__name__
    named = model.named_modules(remove_duplicate=False)  # the counter uses any of them
    modules = {f"{root}.{name}" if name else root: module for name, module in named}

    def products(name: str) -> int:
        return sum(counts.get(name, {}).values()) // 2

    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    in_modules = sum(products(name) for name, m in modules.items() if isinstance(m, kinds))
    total = counter.get_total_flops() // 2
    for name, layer in modules.items():
        if isinstance(layer, LambdaLayer):
            projection = products(f"{name}.qkv")
            positions = projection // (len(x) * layer.qkv.weight.numel())
            dense = len(x) * lambda_multiply_adds(layer, positions)
            total += projection + dense - products(name)
    return MultiplyAdds(in_modules, total)


def lambda_multiply_adds(layer: LambdaLayer, positions: int) -> int:
    """Count the paper's dense form for one map: without projection, with taps on padding."""
    pairs = layer.key_depth * layer.value_depth
    taps = positions if layer.resolution is not None else layer.receptive_field**2
    content = layer.intra_depth + layer.num_heads
    return positions * pairs * (content + layer.intra_depth * taps + layer.num_heads)


# Kernels that torch's own table lacks; the first one exists since torch 2.2.
_MORE_KERNELS = {
    getattr(torch.ops.aten, name): count
    for name, count in {
        "_scaled_dot_product_flash_attention_for_cpu": (
            lambda query, key, value, *args, **kwargs: sdpa_flop_count(query, key, value)
        ),
        "baddbmm_": lambda addend, left, right, *args, **kwargs: 2 * math.prod(left) * right[-1],
    }.items()
    if hasattr(torch.ops.aten, name)
}
