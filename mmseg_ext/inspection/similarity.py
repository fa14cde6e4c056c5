"""How alike the attention maps of layers, and of the heads inside a layer, are.

DeepViT (arXiv:2103.11886), equation 2: the similarity of layers p and q at head h and token t is
the cosine of the columns of the two maps that hold what every token gives to key token t,

    M^{p,q}_{h,t} = A^p_{h,:,t} . A^q_{h,:,t} / (|A^p_{h,:,t}| |A^q_{h,:,t}|),

A being the map that multiplies the values: after the softmax, and after mixing and normalisation
where a layer has them. The class token is a token like the others.

The maps are computed here, from the inputs of the attention layers, which a hook takes during one
forward of the model: the layers themselves neither keep nor form them.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmseg_ext.layers.manhattan_attention import ManhattanAttention, log_decays
from mmseg_ext.layers.re_attention import ReAttention
from mmseg_ext.layers.self_attention import SelfAttention
from mmseg_ext.layers.token_external_attention import (
    MultiHeadExternalAttention,
    double_normalize_tokens,
)


@dataclass
class FullMaps:
    """Attention maps of one layer: `maps` (B, heads, queries, keys).

    `aligned` says whether a key means the same in every layer: positions do, memory slots do not.
    """

    maps: Tensor
    aligned: bool = True

    @property
    def heads(self) -> int:
        return self.maps.shape[1]

    def head(self, index: int) -> "FullMaps":
        """One head, which meets every head of another layer in `inner`."""
        return FullMaps(self.maps[:, index : index + 1], self.aligned)

    def inner(self, other: "FullMaps") -> Tensor:
        """Inner products of the columns, (B, heads, keys)."""
        return (self.maps * other.maps).sum(-2)


@dataclass
class DecomposedMaps:
    """Maps A = A_H A_W of one layer, kept as its factors.

    Position (r, w) gets A_H[w][r, r'] A_W[r'][w, w'] from position (r', w'): attention along the
    rows comes first. `along_h` is (B, heads, W, H, H), `along_w` (B, heads, H, W, W); the composed
    map would have (H W)^2 entries a head, its columns' inner products need H W (H + W) products.
    """

    along_h: Tensor
    along_w: Tensor
    aligned: bool = True

    @property
    def heads(self) -> int:
        return self.along_h.shape[1]

    def head(self, index: int) -> "DecomposedMaps":
        """One head, which meets every head of another layer in `inner`."""
        part = slice(index, index + 1)
        return DecomposedMaps(self.along_h[:, part], self.along_w[:, part], self.aligned)

    def inner(self, other: "DecomposedMaps") -> Tensor:
        """Inner products of the composed maps' columns, (B, heads, H W)."""
        over_rows = (self.along_h * other.along_h).sum(-2)  # (B, heads, W, H'): summed over r
        over_rows = over_rows.transpose(-2, -1).unsqueeze(-1)  # (B, heads, H', W, 1)
        products = over_rows * self.along_w * other.along_w  # (B, heads, H', W, W')
        return products.sum(-2).flatten(-2)  # (B, heads, H' W')

    def composed(self) -> Tensor:
        """The maps (B, heads, H W, H W) themselves."""
        maps = torch.einsum("bnwrs,bnswv->bnrwsv", self.along_h, self.along_w)
        return maps.flatten(4).flatten(2, 3)  # (B, heads, H W, H' W')


Maps = FullMaps | DecomposedMaps


def _manhattan_maps(layer: ManhattanAttention, x: Tensor) -> Maps:
    """Maps of a layer on (B, H, W, C): decomposed or over all positions."""
    height, width = x.shape[1:3]
    q, k = queries_and_keys(layer, x)
    if layer.decomposed:
        columns = (t.transpose(2, 3) for t in (q, k))  # (B, n, W, H, d)
        return DecomposedMaps(
            along_h=decayed_softmax(layer, *columns, _line_distance(height, x.device)),
            along_w=decayed_softmax(layer, q, k, _line_distance(width, x.device)),
        )
    q, k = (t.flatten(2, 3) for t in (q, k))  # (B, n, L, d)
    along_h, along_w = (_line_distance(length, x.device) for length in (height, width))
    distance = along_h[:, None, :, None] + along_w[:, None]  # (H, W, H, W)
    return FullMaps(decayed_softmax(layer, q, k, distance.flatten(2).flatten(0, 1)))


def queries_and_keys(layer: ManhattanAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer on (B, H, W, C) compares, each (B, heads, H, W, d), phases applied."""
    q, k = (p(x).unflatten(-1, (layer.num_heads, -1)) for p in (layer.q_proj, layer.k_proj))
    if layer.rotary:
        q, k = _rotated(q), _rotated(k)
    return q.permute(0, 3, 1, 2, 4), k.permute(0, 3, 1, 2, 4)


def _rotated(x: Tensor) -> Tensor:
    """Pairs of channels of (B, H, W, n, d) turned by theta_j times the raster index."""
    _, height, width, _, dim = x.shape
    theta = 10000.0 ** -torch.linspace(0, 1, dim // 2, dtype=torch.float64, device=x.device)
    index = torch.arange(height * width, dtype=torch.float64, device=x.device)
    angle = (index[:, None] * theta).view(height, width, 1, -1)  # (H, W, 1, d / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _line_distance(length: int, device: torch.device) -> Tensor:
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs()  # (l, l)


def decayed_softmax(layer: ManhattanAttention, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
    """softmax of q k^T / sqrt(d) with the layer's decay by `distance`, for (B, n, ..., l, d)."""
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if layer.decay is None:
        return logits.softmax(-1)
    rates = log_decays(layer.num_heads, layer.decay_start, layer.decay_range).to(logits)
    rates = rates.view(-1, *[1] * (logits.ndim - 2))  # (n, ..., 1, 1)
    if layer.decay == "product":
        return logits.softmax(-1) * (rates * distance).exp()
    return (logits + rates * distance).softmax(-1)


def _external_maps(layer: MultiHeadExternalAttention, x: Tensor) -> FullMaps:
    """Maps from memory slots to tokens, (B, heads, N, S), of a layer on (B, N, C)."""
    wide = layer.trans_dims(x).unflatten(-1, (layer.groups, -1))  # (B, N, G, d)
    maps = double_normalize_tokens(layer.linear_0(wide))  # (B, N, G, S)
    return FullMaps(maps.transpose(1, 2), aligned=False)


_MAPS: dict[type[nn.Module], Callable[[nn.Module, Tensor], Maps]] = {
    ReAttention: lambda layer, x: FullMaps(layer.attention_map(x)),
    SelfAttention: lambda layer, x: FullMaps(layer.attention_map(x)),
    ManhattanAttention: _manhattan_maps,
    MultiHeadExternalAttention: _external_maps,
}


def attention_maps(layer: nn.Module, x: Tensor) -> Maps:
    """The maps that multiply the values of an attention layer, for the layer's input x.

    Raises:
        ValueError: for a layer that has no attention maps known here.
    """
    for kind, compute in _MAPS.items():
        if isinstance(layer, kind):
            return compute(layer, x)
    raise ValueError(f"layer must be one of {_known()}, not {type(layer).__name__}")


def _known() -> str:
    return ", ".join(kind.__name__ for kind in _MAPS)


def column_cosine(first: Maps, second: Maps) -> Tensor:
    """Cosines of the columns of two layers' maps, (B, heads, keys); a zero column gives 0."""
    return _cosine(first.inner(second), first.inner(first).sqrt(), second.inner(second).sqrt())


@dataclass
class SimilarityGroup:
    """Similarities in one run of layers whose maps have one size: a stage, or a whole transformer.

    Attributes:
        name: where the layers are in the backbone.
        layers: their names, in the order in which they run.
        between_heads: similarity of heads g and h of a layer, (layers, heads, heads), averaged over
            keys and images.
        threshold: the cosine from which `share_similar` counts a pair as similar.
    """

    name: str
    layers: list[str]
    between_heads: Tensor
    threshold: float
    _between_layers: Tensor | None
    _share_similar: Tensor | None

    def _of_layers(self, value: Tensor | None) -> Tensor:
        if value is None:
            raise ValueError(
                f"the layers of {self.name!r} can't be compared with each other: their maps go to "
                "memory slots, and slot t of one layer has nothing to do with slot t of another; "
                "between_heads is defined"
            )
        return value

    @property
    def between_layers(self) -> Tensor:
        """Similarity of layers p and q at each head, (layers, layers, heads), averaged over tokens
        and images.

        Raises:
            ValueError: for external attention, whose memory slots differ from layer to layer.
        """
        return self._of_layers(self._between_layers)

    @property
    def share_similar(self) -> Tensor:
        """Share of heads, tokens and images whose cosine reaches `threshold`, (layers, layers).

        Raises:
            ValueError: as `between_layers`.
        """
        return self._of_layers(self._share_similar)

    def with_neighbours(self, k: int) -> Tensor:
        """Mean similarity of each layer with the up to k layers before and k after it, (layers,).

        Raises:
            ValueError: unless 1 <= k < layers; and as `between_layers`.
        """
        count = len(self.layers)
        if not 1 <= k < count:
            raise ValueError(f"k must lie between 1 and {count - 1}, not {k}")
        position = torch.arange(count)
        distance = (position[:, None] - position).abs()
        near = ((distance > 0) & (distance <= k)).to(self.between_layers)
        return (self.between_layers.mean(-1) * near).sum(1) / near.sum(1)

    def similar_layers(self) -> Tensor:
        """How many of the first d layers are similar to the one before, (layers,), d = 1 to all.

        A layer counts where its mean similarity with the layer before is at least `threshold`.
        """
        adjacent = self.between_layers.mean(-1).diagonal(-1)
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


@torch.no_grad()
def attention_similarity(
    model: nn.Module, images: Tensor | Iterable[Tensor], threshold: float = 0.9
) -> list[SimilarityGroup]:
    """Similarity of attention maps between layers and between heads, for each group of layers.

    `model` is a backbone, or a segmentor, of which the backbone is taken. It runs in eval mode,
    image by image. Layers belong to one group as long as their names differ in the last number
    alone: the blocks of a transformer, or those of one stage.

    Args:
        images: normalised images (B, 3, H, W), or an iterable of such, whose sizes may differ.

    Raises:
        ValueError: where the model has no attention layer known here, or there is no image.
    """
    backbone = getattr(model, "backbone", model)
    names = {m: name for name, m in backbone.named_modules() if isinstance(m, tuple(_MAPS))}
    if not names:
        raise ValueError(f"{type(backbone).__name__} has none of the layers {_known()}")
    totals: dict[str, list[_Sums]] = {}
    with evaluating(backbone):
        for batch in [images] if isinstance(images, Tensor) else images:
            for image in batch.split(1):
                inputs = layer_inputs(backbone, names, image)
                for group, layers in _grouped(inputs, names).items():
                    maps = [attention_maps(layer, inputs[layer]) for layer in layers]
                    sums = _similarities(maps, threshold)
                    sums.layers = [names[layer] for layer in layers]
                    totals.setdefault(group, []).append(sums)
    if not totals:
        raise ValueError("images must hold at least one image")
    return [_average(group, sums, threshold) for group, sums in totals.items()]


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


@dataclass
class _Sums:
    """Means over the tokens of one image."""

    between_heads: Tensor
    between_layers: Tensor | None
    share_similar: Tensor | None
    layers: list[str] | None = None


def _similarities(maps: list[Maps], threshold: float) -> _Sums:
    between_heads = torch.stack([_between_heads(layer) for layer in maps])
    if not all(layer.aligned for layer in maps):
        return _Sums(between_heads, None, None)
    count = len(maps)
    norms = [layer.inner(layer).sqrt() for layer in maps]
    between = between_heads.new_ones(count, count, maps[0].heads)
    share = between_heads.new_ones(count, count)
    for p in range(count):
        for q in range(p):
            cosine = _cosine(maps[p].inner(maps[q]), norms[p], norms[q])  # (1, heads, keys)
            between[p, q] = between[q, p] = cosine.mean((0, 2))
            share[p, q] = share[q, p] = (cosine >= threshold).to(cosine).mean()
    return _Sums(between_heads, between, share)


def _between_heads(layer: Maps) -> Tensor:
    """(heads, heads)"""
    norm = layer.inner(layer).sqrt()
    rows = [
        _cosine(layer.head(h).inner(layer), norm[:, h : h + 1], norm).mean((0, 2))
        for h in range(layer.heads)
    ]
    return torch.stack(rows)


def _cosine(inner: Tensor, first_norm: Tensor, second_norm: Tensor) -> Tensor:
    return inner / (first_norm * second_norm).clamp_min(torch.finfo(inner.dtype).tiny)


def _average(group: str, sums: list[_Sums], threshold: float) -> SimilarityGroup:
    def mean(values: list[Tensor | None]) -> Tensor | None:
        return None if values[0] is None else torch.stack(values).mean(0).cpu()

    return SimilarityGroup(
        name=group,
        layers=sums[0].layers,
        between_heads=mean([s.between_heads for s in sums]),
        threshold=threshold,
        _between_layers=mean([s.between_layers for s in sums]),
        _share_similar=mean([s.share_similar for s in sums]),
    )
