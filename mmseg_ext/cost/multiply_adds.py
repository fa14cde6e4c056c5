"""Multiply-adds of a forward in two conventions, by PyTorch's counter of operators.

mmengine's `FlopAnalyzer` leaves out the kernels of scaled-dot-product attention.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from mmseg_ext.layers.lambda_layer import LambdaLayer


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one forward.

    `modules` counts convolution and linear modules, as mmcv's `get_model_complexity_info` and most
    papers' segmentation tables do, without products of attention. `all` counts every convolution
    and matrix product that runs, and a lambda layer as the paper's dense form
    (`lambda_multiply_adds`): the products that it runs over positions are no matrix products.
    """

    modules: int
    all: int


def count_multiply_adds(model: nn.Module, x: Tensor) -> MultiplyAdds:
    """Multiply-adds of `model(x)`, the same on every device, the meta device included."""
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_MORE_KERNELS) as counter:
        model(x)
    counts = counter.get_flop_counts()
    root = type(model).__name__
    named = model.named_modules(remove_duplicate=False)  # the counter takes any of a module's names
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
    """Of one map in the paper's dense form, without the projection; taps on padding count."""
    pairs = layer.key_depth * layer.value_depth
    taps = positions if layer.resolution is not None else layer.receptive_field**2
    content = layer.intra_depth + layer.num_heads
    return positions * pairs * (content + layer.intra_depth * taps + layer.num_heads)


# Missing in torch's own table, which has the kernels of the other devices and `baddbmm`.
_MORE_KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *args, **kwargs: sdpa_flop_count(query, key, value)
    ),
    torch.ops.aten.baddbmm_: (
        lambda addend, left, right, *args, **kwargs: 2 * math.prod(left) * right[-1]
    ),
}
