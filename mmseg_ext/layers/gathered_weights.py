"""Weights of many blocks, concatenated and converted in one operator per stage.

Autocast converts the weights one by one, and their gradients back: for RMT this is a third of
the operators of a training step. The converted values are the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmseg_ext.layers.manhattan_attention import ManhattanBlock, takes_terms
from mmseg_ext.layers.submodules import computes_by_weights
from mmseg_ext.torch_versions import foreach_copy

_MODULES = ("cpe", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.lce", "attn.out_proj")
_MODULES += ("ffn.fc1", "ffn.dwconv", "ffn.fc2")


class GatheredWeights(NamedTuple):
    """Weights of a block: `qkv` as `ManhattanAttention.forward` takes them, and others by name."""

    qkv: tuple[Tensor, Tensor] | None = None
    converted: dict[str, Tensor] = {}


def gather_weights(blocks: Sequence[ManhattanBlock], dtype: torch.dtype) -> list[GatheredWeights]:
    """Copy weights of each block: q, k and v together, the others only if `dtype` is not theirs.

    Modules with hooks, adapters or a parametrization keep their own weights.
    """
    groups: list[list[Tensor]] = []
    places: list[tuple[int, str]] = []  # block and name of each group
    for index, block in enumerate(blocks):
        modules = dict(block.named_modules())
        usual = [n for n in _MODULES if n in modules and computes_by_weights(modules[n])]
        named = {f"{n}.{key}": p for n in usual for key, p in modules[n].named_parameters()}
        projections = [f"attn.{part}_proj" for part in "qkv"]
        if takes_terms(block.attn) and {*projections} <= {*usual}:
            for key in ("weight", "bias"):
                groups.append([named.pop(f"{n}.{key}") for n in projections])
                places.append((index, key))
        for name, parameter in named.items():
            if parameter.dtype != dtype:
                groups.append([parameter])
                places.append((index, name))
    found: list[dict[str, Tensor]] = [{} for _ in blocks]
    for (index, name), tensor in zip(places, concatenated(groups, dtype), strict=True):
        found[index][name] = tensor
    return [_weights_of_block(tensors) for tensors in found]


def _weights_of_block(tensors: dict[str, Tensor]) -> GatheredWeights:
    if "weight" not in tensors:
        return GatheredWeights(None, tensors)
    return GatheredWeights((tensors.pop("weight"), tensors.pop("bias")), tensors)


def concatenated(groups: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Sequence[Tensor]:
    """Return a tensor of `dtype` for each group of parameters, which it concatenates."""
    if not groups:
        return ()
    counts = [len(group) for group in groups]
    return _Concatenated.apply(dtype, counts, *[p for group in groups for p in group])


class _Concatenated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype: torch.dtype, counts: Sequence[int], *parameters: Tensor):
        outputs, parts, constant, start = [], [], [], 0
        for count in counts:
            group = parameters[start : start + count]
            rows = [len(p) for p in group]
            output = group[0].new_empty((sum(rows), *group[0].shape[1:]), dtype=dtype)
            outputs.append(output)
            parts += output.split(rows)
            if not any(ctx.needs_input_grad[2 + start : 2 + start + count]):
                constant.append(output)
            start += count
        foreach_copy(parts, parameters)
        ctx.mark_non_differentiable(*constant)
        ctx.counts = counts
        ctx.rows = [len(p) for p in parameters]
        ctx.dtype = parameters[0].dtype
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        parts, start = [], 0
        for gradient, count in zip(gradients, ctx.counts, strict=True):
            parts += gradient.split(ctx.rows[start : start + count])
            start += count
        if parts[0].dtype != ctx.dtype:
            converted = [torch.empty_like(part, dtype=ctx.dtype) for part in parts]
            foreach_copy(converted, parts)
            parts = converted
        return None, None, *parts
