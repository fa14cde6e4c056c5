"""How alike the attention maps of layers, and of the heads inside a layer, are.

DeepViT (arXiv:2103.11886), equation 2: the similarity of layers p and q at head h and token t is
the cosine of the columns of the two maps that hold what every token gives to key token t,

    M^{p,q}_{h,t} = A^p_{h,:,t} . A^q_{h,:,t} / (|A^p_{h,:,t}| |A^q_{h,:,t}|),

A being the map that multiplies the values: after the softmax, and after mixing and normalisation
where a layer has them. The class token is a token like the others.

The layers keep no maps. A hook takes their inputs during one forward of the model, and
`attention_map` computes the maps from these.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn
from torch.nn.functional import normalize

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.re_attention import ReAttention
from mmseg_ext.layers.self_attention import SelfAttention
from mmseg_ext.layers.token_external_attention import MultiHeadExternalAttention

_POSITIONS = (ReAttention, SelfAttention, ManhattanAttention)
_SLOTS = (MultiHeadExternalAttention,)  # slot t of one layer is not slot t of another
_NEIGHBOURS = (1, 2, 4, 8)


@dataclass
class SimilarityGroup:
    """Similarities in one run of layers whose maps have one size: a stage, or a whole transformer.

    Attributes:
        name: where the layers are in the backbone.
        layers: their names, in the order in which they run.
        threshold: the cosine from which `share_similar` counts a pair as similar.
        between_heads: similarity of heads g and h of a layer, (layers, heads, heads), averaged over
            keys and images.
        between_layers: similarity of layers p and q at each head, (layers, layers, heads), averaged
            over tokens and images; None for external attention, whose layers have different slots.
        share_similar: share of heads, tokens and images whose cosine reaches `threshold`,
            (layers, layers); None as well.
    """

    name: str
    layers: list[str]
    threshold: float
    between_heads: Tensor
    between_layers: Tensor | None
    share_similar: Tensor | None

    def with_neighbours(self, k: int) -> Tensor:
        """Mean similarity of each layer with the up to k layers before and k after it, (layers,).

        Raises:
            ValueError: unless 1 <= k < layers, and where `between_layers` is None.
        """
        count = len(self.layers)
        if not 1 <= k < count:
            raise ValueError(f"k must lie between 1 and {count - 1}, not {k}")
        between = self._comparable()
        position = torch.arange(count)
        distance = (position[:, None] - position).abs()
        near = ((distance > 0) & (distance <= k)).to(between)
        return (between.mean(-1) * near).sum(1) / near.sum(1)

    def similar_layers(self) -> Tensor:
        """How many of the first d layers are similar to the one before, (layers,), d = 1 to all.

        A layer counts where its mean similarity with the layer before is at least `threshold`.

        Raises:
            ValueError: where `between_layers` is None.
        """
        adjacent = self._comparable().mean(-1).diagonal(-1)
        similar = torch.cat([adjacent.new_zeros(1), (adjacent >= self.threshold).to(adjacent)])
        return similar.cumsum(0).long()

    def within_layers(self) -> Tensor:
        """Mean similarity of two different heads of each layer, (layers,).

        Raises:
            ValueError: for layers of a single head.
        """
        heads = self.between_heads.shape[-1]
        if heads < 2:
            raise ValueError(f"the layers of {self.name!r} have a single head")
        total = self.between_heads.sum((1, 2)) - self.between_heads.diagonal(0, 1, 2).sum(-1)
        return total / (heads * (heads - 1))

    def _comparable(self) -> Tensor:
        if self.between_layers is None:
            raise ValueError(f"the layers of {self.name!r} attend to memory slots of their own")
        return self.between_layers


@torch.no_grad()
def attention_similarity(
    model: nn.Module, images: Tensor | Iterable[Tensor], threshold: float = 0.9
) -> list[SimilarityGroup]:
    """Similarity of attention maps between layers and between heads, for each group of layers.

    `model` is a backbone, or a segmentor, of which the backbone is taken. It runs in eval mode,
    image by image. Layers belong to one group as long as their names differ in the last number
    alone: the blocks of a transformer, or those of one stage. The maps of a group, heads x
    positions^2 values a layer, are in memory together.

    Args:
        images: normalised images (B, 3, H, W), or an iterable of such, whose sizes may differ.

    Raises:
        ValueError: where the model has no attention layer known here, or there is no image.
    """
    backbone = getattr(model, "backbone", model)
    kinds = (*_POSITIONS, *_SLOTS)
    names = {m: name for name, m in backbone.named_modules() if isinstance(m, kinds)}
    if not names:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{type(backbone).__name__} has none of the layers {known}")
    groups: dict[str, list[SimilarityGroup]] = {}  # one for each image
    with evaluating(backbone):
        for batch in [images] if isinstance(images, Tensor) else images:
            for image in batch.split(1):
                inputs = layer_inputs(backbone, names, image)
                for group, layers in _grouped(inputs, names).items():
                    # A column of length one for each head and key: (heads, queries, keys).
                    columns = [normalize(m.attention_map(inputs[m])[0], dim=-2) for m in layers]
                    aligned = isinstance(layers[0], _POSITIONS)
                    numbers = _similarities(columns, threshold, aligned)
                    found = SimilarityGroup(group, [names[m] for m in layers], threshold, *numbers)
                    groups.setdefault(group, []).append(found)
    if not groups:
        raise ValueError("images must hold at least one image")
    return [_average(of_images) for of_images in groups.values()]


def _similarities(
    columns: list[Tensor], threshold: float, aligned: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`between_heads`, `between_layers` and `share_similar` of one image."""
    count, keys = len(columns), columns[0].shape[-1]
    heads = torch.stack([torch.einsum("gnk,hnk->gh", c, c) / keys for c in columns])
    if not aligned:
        return heads, None, None
    between, share = heads.new_ones(count, count, heads.shape[1]), heads.new_ones(count, count)
    for p in range(count):
        for q in range(p):
            cosine = (columns[p] * columns[q]).sum(-2)  # (heads, keys)
            between[p, q] = between[q, p] = cosine.mean(-1)
            share[p, q] = share[q, p] = (cosine >= threshold).to(cosine).mean()
    return heads, between, share


def _average(of_images: list[SimilarityGroup]) -> SimilarityGroup:
    first = of_images[0]
    means = []
    for name in ("between_heads", "between_layers", "share_similar"):
        values = [getattr(group, name) for group in of_images]
        means.append(None if values[0] is None else torch.stack(values).mean(0).cpu())
    return SimilarityGroup(first.name, first.layers, first.threshold, *means)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def layer_inputs(
    model: nn.Module, layers: Iterable[nn.Module], image: Tensor
) -> dict[nn.Module, Tensor]:
    """What each of `layers` is called with in one forward, in the order of the calls."""
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


def _grouped(
    layers: Iterable[nn.Module], names: dict[nn.Module, str]
) -> dict[str, list[nn.Module]]:
    groups: dict[str, list[nn.Module]] = {}
    for layer in layers:
        parts = names[layer].split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        group = ".".join(parts[: numbers[-1]]) if numbers else names[layer]
        groups.setdefault(group, []).append(layer)
    return groups


def draw_similarity(groups: list[SimilarityGroup], path: Path, title: str = "") -> None:
    """The paper's three figures in a row for each group: neighbours, similar layers, heads."""
    figure = Figure(figsize=(11, 3.1 * len(groups) + 0.3), layout="constrained")
    figure.suptitle(title)
    rows = figure.subplots(len(groups), 3, squeeze=False)
    for (neighbours, similar, heads), group in zip(rows, groups, strict=True):
        depth = range(1, len(group.layers) + 1)
        if group.between_layers is None:
            for axes in (neighbours, similar):
                axes.text(0.5, 0.5, "slots are not comparable across layers", ha="center")
        else:
            for k in (k for k in _NEIGHBOURS if k < len(depth)):
                values = group.with_neighbours(k).tolist()
                neighbours.plot(depth, values, marker="o", markersize=3, label=f"k = {k}")
                neighbours.legend(fontsize=7)
            similar.step(depth, group.similar_layers().tolist(), where="mid", color="#c0392b")
            similar.set_ylim(0, len(depth))
        if group.between_heads.shape[-1] > 1:
            heads.bar(depth, group.within_layers().tolist(), color="#2a6f97")
        for axes in (neighbours, heads):
            axes.set(ylabel="cosine similarity", ylim=(min(0.0, axes.get_ylim()[0]), 1.02))
        stack = f"{group.name}: " if len(groups) > 1 else ""
        neighbours.set_title(f"{stack}each layer and its k neighbours in depth", fontsize=10)
        similar.set_title(
            f"count of layers like the one before (≥ {group.threshold:g})", fontsize=10
        )
        heads.set_title("different heads of one layer", fontsize=10)
        for axes in (neighbours, similar, heads):
            axes.set_xlabel("layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.25)
    save_figure(figure, path, 110)
