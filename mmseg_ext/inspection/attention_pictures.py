"""Pictures of what attention layers look at, made from each layer's `attention_map`.

External attention (arXiv:2105.02358) attends to memory slots: a picture shows where each slot is
used. The others attend from position to position: a picture shows what one position attends to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.decode_heads.ea_head import JSegEAHead
from mmseg_ext.inspection.similarity import evaluating, layer_inputs
from mmseg_ext.layers.external_attention import ExternalAttention2d
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.re_attention import ReAttention
from mmseg_ext.layers.self_attention import SelfAttention
from mmseg_ext.layers.token_external_attention import MultiHeadExternalAttention
from mmseg_ext.reports.pictures import colorize

_SLOTS = (ExternalAttention2d, JSegEAHead, MultiHeadExternalAttention)
_ON_MAPS = (ManhattanAttention, LambdaLayer)
_ON_TOKENS = (ReAttention, SelfAttention)
_PATCH = 16  # of the backbones on tokens
_SHOWN = 8  # slots or heads
_COLUMNS = 5
_PANEL = 1.75  # inches


@dataclass
class Scene:
    """One image with its prediction, which every picture shows beside the maps.

    Attributes:
        image: (H, W, 3) uint8 RGB, of the size that the model sees.
        labels: predicted classes (H, W).
        pixel: the position that is looked from, (row, column).
    """

    image: np.ndarray
    labels: Tensor
    classes: Sequence[str]
    palette: Sequence[Sequence[int]]
    pixel: tuple[int, int]


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be drawn, by name.

    Raises:
        ValueError: where the model has none.
    """
    kinds = (*_SLOTS, *_ON_MAPS, *_ON_TOKENS)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, kinds)}
    if not layers:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{type(model).__name__} has none of the layers {known}")
    return layers


def chosen_layers(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    """The named layers, or without names the last of each kind.

    Raises:
        ValueError: for a name that is no attention layer; it lists those that are.
    """
    layers = attention_layers(model)
    names = names or {type(layer): name for name, layer in layers.items()}.values()
    unknown = [name for name in names if name not in layers]
    if unknown:
        raise ValueError(f"no attention layer {', '.join(unknown)}; there are {list(layers)}")
    return {name: layers[name] for name in names}


@torch.no_grad()
def captured_inputs(
    model: nn.Module, layers: dict[str, nn.Module], image: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """What each layer is called with for a normalised image (1, 3, H, W), and the labels (H, W).

    `model` is a segmentor; it sees the image whole, whatever its test mode. A segmentor does not
    call its head as a module: the input of `JSegEAHead` is the backbone's maps.
    """
    metas = [{"ori_shape": image.shape[2:], "img_shape": image.shape[2:]}]
    logits = []
    with evaluating(model):
        found = layer_inputs(
            lambda x: logits.append(model.encode_decode(x, metas)[0]), layers.values(), image
        )
        features = model.extract_feat(image)
    inputs = {name: found.get(layer, features) for name, layer in layers.items()}
    (scores,) = logits
    return inputs, scores.argmax(0) if len(scores) > 1 else (scores[0] > 0).long()


def position_of(pixel: Sequence[int], size: Sequence[int], grid: Sequence[int]) -> tuple[int, int]:
    """Row and column on a grid (h, w) of a pixel (row, column) of an image (H, W)."""
    return tuple(p * g // s for p, s, g in zip(pixel, size, grid, strict=True))


def token_grid(tokens: int, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the patches of an image (H, W), which a class token precedes.

    Raises:
        ValueError: where the number of tokens is another.
    """
    grid = (-(-size[0] // _PATCH), -(-size[1] // _PATCH))
    if tokens != 1 + grid[0] * grid[1]:
        raise ValueError(f"tokens must be 1 + {grid[0]} x {grid[1]} for a {size} image: {tokens}")
    return grid


@torch.no_grad()
def slot_maps(layer: nn.Module, x: Tensor, size: tuple[int, int]) -> Tensor:
    """The weights of an external attention's slots at each position, (S, h, w), strongest first.

    With several heads the maps of all are in one list, each divided by the number of heads, so that
    the slots sum to one at every position.
    """
    maps = layer.attention_map(x)[0]
    if isinstance(layer, MultiHeadExternalAttention):
        grid = token_grid(maps.shape[1], size)
        maps = maps[:, 1:].transpose(1, 2).flatten(0, 1).unflatten(1, grid) / len(maps)
    return maps[maps.mean((1, 2)).argsort(descending=True, stable=True)]


@torch.no_grad()
def head_maps(layer: nn.Module, x: Tensor, size: tuple[int, int], pixel: tuple[int, int]) -> Tensor:
    """The weights by which a pixel's position attends to each position, (heads, h, w).

    Weights of a lambda layer are the mean over the intra-depth. They may be negative.
    """
    if isinstance(layer, _ON_TOKENS):
        grid = token_grid(x.shape[1], size)
        row, column = position_of(pixel, size, grid)
        maps = layer.attention_map(x)[0, :, 1 + row * grid[1] + column, 1:]
        return maps.unflatten(1, grid)
    grid = x.shape[2:] if isinstance(layer, LambdaLayer) else x.shape[1:3]
    maps = layer.attention_map(x, position_of(pixel, size, grid))[0, ..., 0, :]
    if isinstance(layer, LambdaLayer):
        maps = maps.mean(1)
    return maps.unflatten(1, tuple(grid))


def class_lift(maps: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How many times more each map (S, h, w) lies on a class than its area explains, (S, classes).

    Zero for classes that labels (H, W) have not; ignored labels belong to no class.
    """
    here = nn.functional.interpolate(labels[None, None].float(), maps.shape[1:], mode="nearest")
    member = (here.flatten()[:, None] == torch.arange(classes, device=here.device)).to(maps)
    share = maps.flatten(1) @ member / maps.flatten(1).sum(1, keepdim=True).clamp_min(1e-12)
    area = member.mean(0)
    return torch.where(area > 0, share / area.clamp_min(1e-12), 0.0)


def overlay(image: np.ndarray, heat: Tensor) -> np.ndarray:
    """A map (h, w) over a grey image (H, W, 3), (H, W, 3) in [0, 1]; its largest is brightest.

    With negative values zero is pale, positive red and negative blue.
    """
    grown = nn.functional.interpolate(heat[None, None].float(), image.shape[:2], mode="nearest")
    values = (grown[0, 0] / grown.abs().max().clamp_min(1e-12)).cpu().numpy()
    if heat.min() < 0:
        colours = matplotlib.colormaps["RdBu_r"](0.5 + values / 2)
    else:
        colours = matplotlib.colormaps["magma"](values)
    return 0.3 * image.mean(-1, keepdims=True) / 255 + 0.7 * colours[..., :3]


def draw_layer(layer: nn.Module, x: Tensor, scene: Scene, title: str, path: Path) -> str:
    """The picture of a layer for its input x, as PNG; returns a line that says what is seen."""
    size = scene.image.shape[:2]
    if isinstance(layer, _SLOTS):
        maps = slot_maps(layer, x, size)
        mass = 100 * maps.mean((1, 2))[:_SHOWN]
        maps = maps[:_SHOWN]
        lift, best = class_lift(maps, scene.labels, len(scene.classes)).max(1)
        titles = [
            f"{share:.1f} % of the weight\n{scene.classes[c]} × {times:.1f}"
            for share, c, times in zip(mass.tolist(), best.tolist(), lift.tolist(), strict=True)
        ]
        said = f"the {len(maps)} strongest slots hold {float(mass.sum()):.0f} % of the weight"
        marked = None
    else:
        maps = head_maps(layer, x, size, scene.pixel)
        reach = _mean_distance(maps, position_of(scene.pixel, size, maps.shape[1:]))
        said = f"mean distance by head: {', '.join(f'{r:.1f}' for r in reach)} positions"
        maps = torch.cat([maps.mean(0, keepdim=True), maps[:_SHOWN]])
        titles = ["mean of the heads", *(f"head {i}" for i in range(len(maps) - 1))]
        marked = scene.pixel
    pictures = {"image": scene.image}
    pictures["prediction"] = colorize(scene.labels.cpu().numpy(), scene.palette)
    overlays = [overlay(scene.image, heat) for heat in maps]
    _save(pictures | dict(zip(titles, overlays, strict=True)), title, marked, maps, path)
    return said


def _mean_distance(maps: Tensor, position: tuple[int, int]) -> list[float]:
    """Mean Manhattan distance from a position under the magnitudes of maps (heads, h, w)."""
    rows, columns = (torch.arange(n, device=maps.device) for n in maps.shape[1:])
    distance = (rows - position[0]).abs()[:, None] + (columns - position[1]).abs()
    weights = maps.abs()
    return ((weights * distance).sum((1, 2)) / weights.sum((1, 2))).tolist()


def _save(
    pictures: dict[str, np.ndarray],
    title: str,
    marked: tuple[int, int] | None,
    maps: Tensor,
    path: Path,
) -> None:
    """A grid of pictures (H, W, 3) with a colour bar; `marked` is a pixel that gets a cross."""
    height, width = next(iter(pictures.values())).shape[:2]
    rows = -(-len(pictures) // _COLUMNS)
    inches = (_COLUMNS * _PANEL + 1.0, rows * (_PANEL * height / width + 0.35) + 0.4)
    figure = Figure(figsize=inches, layout="constrained")
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, (name, picture) in zip(grid.flat, pictures.items(), strict=False):
        axes.imshow(picture)
        axes.set_title(name, fontsize=8, pad=2, parse_math=False)
        if marked:
            axes.plot(marked[1], marked[0], "+", color="white", markersize=9, markeredgewidth=2.6)
            axes.plot(marked[1], marked[0], "+", color="#e4572e", markersize=8, markeredgewidth=1.4)
    low, colours = (-1, "RdBu_r") if maps.min() < 0 else (0, "magma")
    bar = figure.colorbar(ScalarMappable(Normalize(low, 1), colours), ax=grid, shrink=0.8)
    bar.set_label("of the picture's largest", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    save_figure(figure, path, 110)
