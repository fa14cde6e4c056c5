"""What attention layers look at, as maps over an image, computed from what goes into the layers.

Hooks take the layers' inputs during one forward (`similarity.layer_inputs`); the maps are formed
here, for one query where a layer compares all pairs of positions. The layers keep none.

External attention: arXiv:2105.02358. Manhattan attention: arXiv:2309.11523. Lambda layer:
arXiv:2102.08602. Re-attention: arXiv:2103.11886.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmseg_ext.decode_heads.ea_head import JSegEAHead
from mmseg_ext.inspection.similarity import (
    attention_maps,
    decayed_softmax,
    evaluating,
    layer_inputs,
    queries_and_keys,
)
from mmseg_ext.layers.external_attention import ExternalAttention2d, double_normalize
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention, log_decays
from mmseg_ext.layers.re_attention import ReAttention
from mmseg_ext.layers.token_external_attention import MultiHeadExternalAttention

KINDS = (
    ExternalAttention2d,
    JSegEAHead,  # whose external attention is no module of its own
    MultiHeadExternalAttention,
    ManhattanAttention,
    LambdaLayer,
    ReAttention,
)
PATCH = 16  # of the backbones on tokens


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be viewed here, by name.

    Raises:
        ValueError: where the model has none.
    """
    layers = {name: m for name, m in model.named_modules() if isinstance(m, KINDS)}
    if not layers:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise ValueError(f"{type(model).__name__} has none of the layers {known}")
    return layers


def chosen_layers(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    """The named layers, or without names the last of each kind.

    Raises:
        ValueError: for a name that is no attention layer; it lists those that are.
    """
    layers = attention_layers(model)
    if names:
        unknown = [name for name in names if name not in layers]
        if unknown:
            raise ValueError(f"no attention layer {', '.join(unknown)}; there are {list(layers)}")
        return {name: layers[name] for name in names}
    last = {type(layer): name for name, layer in layers.items()}
    return {name: layers[name] for name in last.values()}


@torch.no_grad()
def captured_inputs(
    model: nn.Module, layers: dict[str, nn.Module], image: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """What each layer is called with for a normalised image (1, 3, H, W), and the labels (H, W).

    Of `JSegEAHead` it is what its `linear_0`, the keys, is called with: (1, channels, h, w).
    `model` is a segmentor; it sees the image whole, whatever its test mode.
    """
    # A segmentor does not call its head as a module: a hook on it would not run.
    names = {m.linear_0 if isinstance(m, JSegEAHead) else m: name for name, m in layers.items()}
    metas = [{"ori_shape": image.shape[2:], "img_shape": image.shape[2:]}]
    logits = []
    with evaluating(model):
        inputs = layer_inputs(
            lambda x: logits.append(model.encode_decode(x, metas)), list(names), image
        )
    labels = logits[0][0].argmax(0) if logits[0].shape[1] > 1 else (logits[0][0, 0] > 0).long()
    return {names[layer]: x for layer, x in inputs.items()}, labels


def token_grid(tokens: int, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the patches of an image (H, W), which a class token precedes.

    Raises:
        ValueError: where the number of tokens is another.
    """
    grid = (-(-size[0] // PATCH), -(-size[1] // PATCH))
    if tokens != 1 + grid[0] * grid[1]:
        raise ValueError(f"tokens must be 1 + {grid[0]} x {grid[1]} for a {size} image: {tokens}")
    return grid


# --- external attention -------------------------------------------------------------------------


@dataclass
class Slots:
    """Memory slots of one external attention layer on one image, the strongest first.

    Attributes:
        maps: attention of each position to each slot, (S, h, w); at a position the slots sum to 1.
        mass: mean of each map, (S,): the share of all attention that the slot gets. They sum to 1.
        index: which slot of the layer each is, (S,); with heads, head * slots + slot.
        share: of what each slot gets, the part from pixels of each class, (S, classes).
        area: the part of the image that each class covers, (classes,).
    """

    maps: Tensor
    mass: Tensor
    index: Tensor
    share: Tensor
    area: Tensor

    @property
    def lift(self) -> Tensor:
        """How many times more a slot gets from a class than its area explains, (S, classes).

        Zero for classes that the image has not.
        """
        return torch.where(self.area > 0, self.share / self.area.clamp_min(1e-12), 0.0)


@torch.no_grad()
def slot_maps(layer: nn.Module, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (S, h, w) of a layer's slots for its input x from one image (H, W).

    With several heads their maps follow one another, each divided by the number of heads.
    """
    if isinstance(layer, ExternalAttention2d):
        return layer.attention_map(x)[0]
    if isinstance(layer, JSegEAHead):
        logits = layer.linear_0(x)  # (1, S, h, w)
        return double_normalize(logits.flatten(2))[0].unflatten(1, logits.shape[2:])
    maps = attention_maps(layer, x).maps[0]  # (heads, N, S)
    grid = token_grid(maps.shape[1], size)
    maps = maps[:, 1:].transpose(1, 2) / len(maps)  # (heads, S, h w)
    return maps.flatten(0, 1).unflatten(1, grid)  # (heads S, h, w)


def summarise_slots(maps: Tensor, labels: Tensor, classes: int) -> Slots:
    """Order maps (S, h, w) by mass and say on which classes of labels (H, W) each falls.

    Labels of `classes` or more, the ignored ones, belong to no class.
    """
    height, width = maps.shape[1:]
    here = nn.functional.interpolate(labels[None, None].float(), (height, width), mode="nearest")
    here = here.long().flatten()  # (h w)
    member = (here[:, None] == torch.arange(classes, device=here.device)).to(maps)  # (h w, classes)
    mass, index = maps.flatten(1).mean(1).sort(descending=True, stable=True)
    maps = maps[index]
    share = maps.flatten(1) @ member / maps.flatten(1).sum(1, keepdim=True).clamp_min(1e-12)
    return Slots(maps, mass, index, share, member.mean(0))


# --- Manhattan attention ------------------------------------------------------------------------


def position_of(pixel: tuple[int, int], size: tuple[int, int], grid: tuple[int, int]):
    """Row and column on a grid (h, w) over an image (H, W) of a pixel (row, column).

    Raises:
        ValueError: for a pixel outside the image.
    """
    if any(not 0 <= p < s for p, s in zip(pixel, size, strict=True)):
        raise ValueError(f"pixel must lie inside the image {tuple(size)}, not {tuple(pixel)}")
    return tuple(p * g // s for p, s, g in zip(pixel, size, grid, strict=True))


@torch.no_grad()
def manhattan_row(
    layer: ManhattanAttention,
    x: Tensor,
    position: tuple[int, int],
    decomposed: bool | None = None,
) -> Tensor:
    """Attention from one position (row, column) to all, (heads, H, W), for x (1, H, W, C).

    `decomposed` False is attention over the whole map, True its two factors multiplied; None what
    the layer does. The row alone is formed.
    """
    q, k = queries_and_keys(layer, x)  # (1, n, H, W, d)
    row, column = position
    height, width = x.shape[1:3]
    to_row = (torch.arange(height, device=x.device) - row).abs()
    to_column = (torch.arange(width, device=x.device) - column).abs()
    query = q[:, :, row, column, None]  # (1, n, 1, d)
    if not (layer.decomposed if decomposed is None else decomposed):
        distance = (to_row[:, None] + to_column).flatten()  # (L)
        maps = decayed_softmax(layer, query, k.flatten(2, 3), distance)  # (1, n, 1, L)
        return maps[0].unflatten(-1, (height, width)).squeeze(1)  # (n, H, W)
    along_h = decayed_softmax(layer, query, k[:, :, :, column], to_row)  # (1, n, 1, H)
    # Each row of the result is what the position in the same column attends to along its row.
    queries = q[:, :, :, column, None]  # (1, n, H, 1, d)
    along_w = decayed_softmax(layer, queries, k, to_column)  # (1, n, H, 1, W)
    return along_h[0].transpose(1, 2) * along_w[0].squeeze(2)  # (n, H, W)


def decay_row(layer: ManhattanAttention, grid: tuple[int, int], position: tuple[int, int]):
    """gamma^distance from one position to all, (heads, H, W); ones for a layer without decay."""
    row, column = position
    distance = (torch.arange(grid[0]) - row).abs()[:, None] + (torch.arange(grid[1]) - column).abs()
    if layer.decay is None:
        return torch.ones(layer.num_heads, *grid)
    rates = log_decays(layer.num_heads, layer.decay_start, layer.decay_range).float()
    return (rates[:, None, None] * distance).exp()


# --- lambda layer -------------------------------------------------------------------------------


@dataclass
class LambdaResponse:
    """How one position's query weighs the values of the context, heads apart.

    Attributes:
        content: q_n . K~_m of each context position m, (heads, u, H, W); None without content.
        position: q_n . E_(m-n), (heads, u, H, W); zero beyond the embeddings' reach; None without.
        constant: what each head adds to all value channels (the embeddings' bias), (heads,).
    """

    content: Tensor | None
    position: Tensor | None
    constant: Tensor

    @property
    def total(self) -> Tensor:
        """The weights, (heads, u, H, W): y_n is their sum with the values, plus the constant."""
        return sum(part for part in (self.content, self.position) if part is not None)


@torch.no_grad()
def lambda_response(
    layer: LambdaLayer, x: Tensor, position: tuple[int, int]
) -> tuple[LambdaResponse, Tensor]:
    """The response to one position's query, and the values (u, v, H, W), for x (1, C, H, W).

    The lambda is linear in the values: y_n = sum over m of (q_n . (K~_m + E_(m-n))) V_m. The layer
    is in evaluation mode; of a strided layer this is the result before pooling.
    """
    queries, keys, values = layer.qkv(x).split(layer.channels, dim=1)
    row, column = position
    query = layer.norm_q(queries)[0, :, row, column].unflatten(0, (layer.num_heads, -1))  # (h, k)
    values = layer.norm_v(values)[0].unflatten(0, (layer.intra_depth, -1))  # (u, v, H, W)
    size = tuple(x.shape[2:])
    content = place = None
    constant = query.new_zeros(layer.num_heads)
    if layer.content:
        keys = keys[0].unflatten(0, (layer.intra_depth, layer.key_depth))  # (u, k, H, W)
        keys = keys.flatten(2).softmax(-1).unflatten(-1, size)
        content = torch.einsum("hk,ukyx->huyx", query, keys)
    if layer.embeddings is not None:
        kernel = torch.einsum("hk,kurs->hurs", query, layer.embeddings.weight)
        place = _centred_at(kernel, position, size, layer.dilation)
        if layer.embeddings.bias is not None:
            constant = query @ layer.embeddings.bias
    return LambdaResponse(content, place, constant), values


def _centred_at(
    kernel: Tensor, position: tuple[int, int], size: tuple[int, int], dilation: int
) -> Tensor:
    """A kernel (..., R, S) laid over a map (H, W) with its middle at a position."""
    taps, places = [], []
    for length, centre, count in zip(size, position, kernel.shape[-2:], strict=True):
        offset = torch.arange(count, device=kernel.device)
        place = centre + dilation * (offset - count // 2)
        inside = (place >= 0) & (place < length)
        taps.append(offset[inside])
        places.append(place[inside])
    out = kernel.new_zeros(*kernel.shape[:-2], *size)
    out[..., places[0][:, None], places[1]] = kernel[..., taps[0][:, None], taps[1]]
    return out


# --- re-attention -------------------------------------------------------------------------------


@torch.no_grad()
def head_maps(layer: ReAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Maps of the heads before mixing (the softmax) and after, each (H, N, N), for x (1, N, C).

    The second multiplies the values: its rows need not sum to one, and may be negative.
    """
    qkv = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1))  # (1, N, 3, H, d)
    q, k = qkv[0, :, :2].permute(1, 2, 0, 3)  # (H, N, d)
    before = (q @ k.transpose(-2, -1) * layer.scale).softmax(-1)  # (H, N, N)
    return before, layer.attention_map(x)[0]
