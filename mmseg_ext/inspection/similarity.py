"""Similarity of attention maps across layers and heads, as measured by DeepViT.

arXiv:2103.11886, equation 2: for layers p and q, head h and key token t,

    M^{p,q}_{h,t} = A^p_{h,:,t} . A^q_{h,:,t} / (|A^p_{h,:,t}| |A^q_{h,:,t}|),

where A is the map that multiplies the values, after mixing and normalization in re-attention.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.re_attention import ReAttention, SelfAttention

_LAYERS = (ReAttention, SelfAttention, ManhattanAttention)


@dataclass
class SimilarityGroup:
    """Mean cosines of the layers of one stage or transformer, whose maps have one size.

    Attributes:
        name: the common part of the layers' names.
        layers: the names of the layers in the order in which they run.
        between_layers: layers p and q at each head, (layers, layers, heads).
        between_heads: heads g and h of each layer, (layers, heads, heads).
    """

    name: str
    layers: list[str]
    between_layers: Tensor
    between_heads: Tensor


@torch.no_grad()
def attention_similarity(model: nn.Module, images: Tensor) -> list[SimilarityGroup]:
    """Measure the similarity of attention maps, averaged over tokens and images.

    Consecutive layers form a group if their names only differ in the last number. The maps of a
    group, heads x positions^2 values per layer and image, are in memory together.

    Args:
        model: a backbone, or a segmentor, whose backbone is measured. It runs in eval mode.
        images: normalized images (B, 3, H, W).

    Raises:
        ValueError: if the model has no self-attention, re-attention or Manhattan attention.
    """
    backbone = getattr(model, "backbone", model)
    names: dict[Any, str] = {}
    common: dict[Any, str] = {}  # names without the last number: stages.2 for stages.2.14.attn
    for name, module in backbone.named_modules():
        if isinstance(module, _LAYERS):
            names[module] = name
            common[module] = re.sub(r"\.\d+(\.\D+)?$", "", name)
    if not names:
        known = ", ".join(kind.__name__ for kind in _LAYERS)
        raise ValueError(f"{type(backbone).__name__} has none of the layers {known}")
    with evaluating(backbone):
        inputs = layer_inputs(backbone, names, images)
        groups = []
        for common_name, group in groupby(inputs, lambda layer: common[layer]):
            own_names, maps = [], []
            layer: Any
            for layer in group:
                own_names.append(names[layer])
                maps.append(layer.attention_map(inputs[layer]))
            columns = normalize(torch.stack(maps), dim=-2)  # (layers, B, heads, queries, keys)
            count = columns.shape[1] * columns.shape[4]
            between_layers = torch.einsum("pbhnk,qbhnk->pqh", columns, columns) / count
            between_heads = torch.einsum("pbgnk,pbhnk->pgh", columns, columns) / count
            groups.append(SimilarityGroup(common_name, own_names, between_layers, between_heads))
    return groups


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode, and restore the mode of every module at the end."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def layer_inputs(
    model: Callable, layers: Iterable[nn.Module], image: Tensor
) -> dict[nn.Module, Tensor]:
    """Run `model(image)`, and return the input of each layer in the order of the calls."""
    inputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs[layer] = arguments[0]

    handles = [layer.register_forward_pre_hook(keep) for layer in layers]
    try:
        model(image)
    finally:
        for handle in handles:
            handle.remove()
    return inputs
