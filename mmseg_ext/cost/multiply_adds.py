"""Multiply-adds of a forward in two conventions, by PyTorch's counter of operators.

mmengine's counter (`mmengine.analysis.FlopAnalyzer`) traces the model and leaves out the kernels of
scaled-dot-product attention; PyTorch's sees every operator and names the module that runs it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from mmseg_ext.layers.lambda_layer import LambdaLayer


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one forward.

    `modules` counts what convolution and linear modules run, the convention of mmcv's
    `get_model_complexity_info` and of most papers' segmentation tables: products of attention
    are left out. `all` counts every convolution and matrix product that runs. A lambda layer counts
    as the paper's dense form (`lambda_multiply_adds`), whichever way it runs: its products
    over positions and its Fourier transforms are no matrix products.
    """

    modules: int
    all: int


def count_multiply_adds(model: nn.Module, *args) -> MultiplyAdds:
    """Multiply-adds of `model(*args)`, the same on every device, the meta device included."""
    root = type(model).__name__
    named = model.named_modules(remove_duplicate=False)  # the counter takes any of a module's names
    names = {f"{root}.{name}" if name else root: m for name, m in named}
    lambdas = {name: m for name, m in names.items() if isinstance(m, LambdaLayer)}
    dense = 0  # of the lambdas

    def add_dense_form(layer: LambdaLayer, inputs: tuple[Tensor, ...]) -> None:
        nonlocal dense
        batch, _, height, width = inputs[0].shape
        dense += batch * lambda_multiply_adds(layer, height, width)

    handles = [m.register_forward_pre_hook(add_dense_form) for m in set(lambdas.values())]
    counter = FlopCounterMode(display=False, custom_mapping=_MORE_KERNELS)
    try:
        with torch.no_grad(), counter:
            model(*args)
    finally:
        for handle in handles:
            handle.remove()

    counts = counter.get_flop_counts()

    def flops(name: str) -> int:
        return sum(counts.get(name, {}).values())

    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    modules = sum(flops(name) for name, m in names.items() if isinstance(m, kinds))
    inside = sum(flops(name) - flops(f"{name}.qkv") for name in lambdas)
    return MultiplyAdds(modules // 2, (counter.get_total_flops() - inside) // 2 + dense)


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
