"""Pictures of attention, drawn from each layer's `attention_map`.

External attention (arXiv:2105.02358) attends to memory slots: the picture shows where each slot is
used. The other layers attend from position to position: the picture shows one query position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from mmengine.dataset import pseudo_collate
from torch import Tensor, nn

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.backbones.deepvit import PATCH
from mmseg_ext.decode_heads.ea_head import JSegEAHead
from mmseg_ext.images.pictures import colorize, to_picture
from mmseg_ext.inference.predictor import Predictor
from mmseg_ext.inspection.similarity import evaluating, layer_inputs
from mmseg_ext.layers.external_attention import ExternalAttention2d
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.re_attention import ReAttention, SelfAttention
from mmseg_ext.layers.token_external_attention import MultiHeadExternalAttention

SLOT_LAYERS = (ExternalAttention2d, JSegEAHead, MultiHeadExternalAttention)
_TOKEN_LAYERS = (ReAttention, SelfAttention)
_SHOWN = 8  # slots or heads
_COLUMNS = 5
_STYLE: dict[Any, Any] = {"font.size": 8, "text.parse_math": False}  # a name may contain $


@dataclass
class Scene:
    """One image with its prediction, drawn next to the maps."""

    image: np.ndarray  # (H, W, 3) uint8 RGB, of the size that the model gets
    labels: Tensor  # predicted classes (H, W)
    classes: Sequence[str]
    palette: Sequence[Sequence[int]]
    pixel: tuple[int, int]  # the query position (row, column)


def select_layers(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    """Return the attention layers with these names, or by default the last layer of each kind.

    Raises:
        ValueError: if a layer is missing; the message lists the available names.
    """
    layers = find_layers(model)
    if not names:
        last_of_kind = {}
        for name, layer in layers.items():
            last_of_kind[type(layer)] = name
        names = list(last_of_kind.values())
    unknown = [name for name in names if name not in layers]
    if unknown:
        raise ValueError(f"no attention layer {', '.join(unknown)}; there are {list(layers)}")
    return {name: layers[name] for name in names}


def find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return all layers that can be drawn, by name.

    Raises:
        ValueError: if the model has none.
    """
    kinds = (*SLOT_LAYERS, ManhattanAttention, LambdaLayer, *_TOKEN_LAYERS)
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, kinds):
            layers[name] = module
    if not layers:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{type(model).__name__} has none of the layers {known}")
    return layers


def seen_pixel(
    pixel: Sequence[int] | None, original: tuple[int, int], seen: tuple[int, int]
) -> tuple[int, int]:
    """Return the position in the resized image of a pixel (row, column), by default the middle.

    Raises:
        ValueError: if the pixel is outside of the image.
    """
    rows, columns = original
    row, column = pixel or (rows // 2, columns // 2)
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(
            f"--pixel {row} {column}: outside of the image, which has {rows} rows and {columns} "
            "columns"
        )
    # The position of the pixel's center.
    return (2 * row + 1) * seen[0] // (2 * rows), (2 * column + 1) * seen[1] // (2 * columns)


def network_input(model: Any, path: str) -> tuple[Tensor, np.ndarray, tuple[int, int]]:
    """Return a normalized image (1, C, H, W), its RGB picture (h, w, 3), and its size on disk.

    `model` is a segmentor.
    """
    sample = Predictor(model).prepare(path)
    image = model.data_preprocessor(pseudo_collate([sample]), False)["inputs"]
    shown = to_picture(sample["inputs"].permute(1, 2, 0).numpy(), model.cfg.get("rgb_bands"))
    return image, shown, sample["data_samples"].metainfo["ori_shape"]


def capture_inputs(
    model: Any, layers: dict[str, nn.Module], image: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the input of each layer for a normalized image (1, C, H, W), and the labels (H, W).

    `model` is a segmentor. It gets the full image, whatever its test mode is.
    """
    metas = [{"ori_shape": image.shape[2:], "img_shape": image.shape[2:]}]
    logits: list[Tensor] = []
    with evaluating(model):
        found = layer_inputs(
            lambda x: logits.append(model.encode_decode(x, metas)[0]), layers.values(), image
        )
        # Segmentors call methods of their head, not the head, so hooks of JSegEAHead do not run.
        features = model.extract_feat(image)
    inputs: dict[str, Any] = {name: found.get(layer, features) for name, layer in layers.items()}
    (predicted,) = model.postprocess_result(logits[0][None])
    return inputs, predicted.pred_sem_seg.data[0]


def locate(pixel: Sequence[int], size: Sequence[int], grid: Sequence[int]) -> tuple[int, int]:
    """Return row and column in a grid (h, w) of a pixel (row, column) of an image (H, W)."""
    return pixel[0] * grid[0] // size[0], pixel[1] * grid[1] // size[1]


def patch_grid(tokens: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of the patches of an image (H, W).

    Raises:
        ValueError: if `tokens` is not the number of patches plus one class token.
    """
    grid = (-(-size[0] // PATCH), -(-size[1] // PATCH))
    if tokens != 1 + grid[0] * grid[1]:
        raise ValueError(f"tokens must be 1 + {grid[0]} x {grid[1]} for a {size} image: {tokens}")
    return grid


@torch.no_grad()
def slot_maps(layer: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the weights of the memory slots at each position, (S, h, w), strongest slot first.

    The slots of all heads are in one list. At each position the weights sum to one.
    """
    maps = layer.attention_map(x)[0]
    if isinstance(layer, MultiHeadExternalAttention):
        grid = patch_grid(maps.shape[1], size)
        maps = maps[:, 1:].transpose(1, 2).flatten(0, 1).unflatten(1, grid) / len(maps)
    return maps[maps.mean((1, 2)).argsort(descending=True, stable=True)]


@torch.no_grad()
def head_maps(layer: Any, x: Tensor, size: tuple[int, int], pixel: tuple[int, int]) -> Tensor:
    """Return the weights by which a pixel attends to each position, (heads, h, w).

    Weights of a lambda layer are means over the intra-depth and can be negative.
    """
    if isinstance(layer, _TOKEN_LAYERS):
        grid = patch_grid(x.shape[1], size)
        row, column = locate(pixel, size, grid)
        maps = layer.attention_map(x)[0, :, 1 + row * grid[1] + column, 1:]
        return maps.unflatten(1, grid)
    grid = x.shape[2:] if isinstance(layer, LambdaLayer) else x.shape[1:3]
    maps = layer.attention_map(x, locate(pixel, size, grid))[0, ..., 0, :]
    if isinstance(layer, LambdaLayer):
        maps = maps.mean(1)
    return maps.unflatten(1, tuple(grid))


def measure_preference(maps: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the share of each map (S, h, w) on a class divided by the class's area, (S, classes).

    It is zero for classes that labels (H, W) do not contain. Ignored labels belong to no class.
    """
    here = nn.functional.interpolate(labels[None, None].float(), maps.shape[1:], mode="nearest")
    member = (here.flatten()[:, None] == torch.arange(classes, device=here.device)).to(maps)
    share = maps.flatten(1) @ member / maps.flatten(1).sum(1, keepdim=True).clamp_min(1e-12)
    area = member.mean(0)
    return torch.where(area > 0, share / area.clamp_min(1e-12), 0.0)


def overlay(image: np.ndarray, heat: Tensor, signed: bool) -> np.ndarray:
    """Draw a map (h, w) over a gray image (H, W, 3), (H, W, 3) in [0, 1].

    Zero is pale, positive values are red and, if `signed`, negative ones blue.
    """
    grown = nn.functional.interpolate(heat[None, None].float(), image.shape[:2], mode="nearest")
    values = (grown[0, 0] / grown.abs().max().clamp_min(1e-12)).cpu().numpy()
    colors = _color_map(signed).to_rgba(values, norm=True)[..., :3]
    return 0.3 * image.mean(-1, keepdims=True) / 255 + 0.7 * colors


def _color_map(signed: bool) -> ScalarMappable:
    """Return the colors of values up to 1, or from -1 to 1."""
    if signed:
        return ScalarMappable(Normalize(-1, 1), "RdBu_r")
    return ScalarMappable(Normalize(0, 1), "Reds")


def draw_layer(layer: nn.Module, x: Tensor, scene: Scene, title: str, path: Path) -> str:
    """Draw a layer's attention for its input x as a PNG file, and return a one-line summary."""
    if isinstance(layer, SLOT_LAYERS):
        maps, titles, summary = _shown_slots(layer, x, scene)
        marked = None
    else:
        maps, titles, summary = _shown_heads(layer, x, scene)
        marked = scene.pixel
    labels = colorize(scene.labels.cpu().numpy(), scene.palette)
    panels = [("image", scene.image), ("prediction", labels)]
    signed = bool(maps.min() < 0)
    for name, heat in zip(titles, maps, strict=True):
        panels.append((name, overlay(scene.image, heat, signed)))
    _save(panels, title, marked, signed, path)
    return summary


def _shown_slots(layer: nn.Module, x: Tensor, scene: Scene) -> tuple[Tensor, list[str], str]:
    """Return the maps of the strongest slots, a title for each, and a summary."""
    maps = slot_maps(layer, x, scene.image.shape[:2])
    mass = 100 * maps.mean((1, 2))[:_SHOWN]
    maps = maps[:_SHOWN]
    ratios, best = measure_preference(maps, scene.labels, len(scene.classes)).max(1)
    titles = []
    for share, index, times in zip(mass.tolist(), best.tolist(), ratios.tolist(), strict=True):
        titles.append(f"{share:.1f} % of the weight\n{scene.classes[index]} × {times:.1f}")
    summary = f"the {len(maps)} strongest slots have {float(mass.sum()):.0f} % of the weight"
    return maps, titles, summary


def _shown_heads(layer: nn.Module, x: Tensor, scene: Scene) -> tuple[Tensor, list[str], str]:
    """Return the mean map of the heads and the maps of some, a title for each, and a summary."""
    size = scene.image.shape[:2]
    maps = head_maps(layer, x, size, scene.pixel)
    # The mean Manhattan distance of what each head attends to.
    row, column = locate(scene.pixel, size, maps.shape[1:])
    down = (torch.arange(maps.shape[1], device=maps.device) - row).abs()[:, None]
    distance = down + (torch.arange(maps.shape[2], device=maps.device) - column).abs()
    weights = maps.abs()
    distances = (weights * distance).sum((1, 2)) / weights.sum((1, 2))
    numbers = ", ".join(f"{distance:.1f}" for distance in distances.tolist())
    mean, some = maps.mean(0, keepdim=True), maps[:_SHOWN]
    titles = ["mean of the heads"]
    for i in range(len(some)):
        titles.append(f"head {i}")
    return torch.cat([mean, some]), titles, f"mean distance by head: {numbers} positions"


@matplotlib.rc_context(_STYLE)
def _save(panels: Sequence, title: str, marked: tuple | None, signed: bool, path: Path) -> None:
    """Save titled pictures (H, W, 3) with a color bar and a cross at the pixel `marked`."""
    height, width = panels[0][1].shape[:2]
    rows = -(-len(panels) // _COLUMNS)
    inches = (2 * _COLUMNS, rows * (2 * height / width + 0.5))
    figure = Figure(figsize=inches, layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, _COLUMNS)
    for axes in grid.flat:
        axes.axis("off")
    for axes, (name, picture) in zip(grid.flat, panels, strict=False):
        axes.imshow(picture)
        axes.set_title(name)
        if marked:
            axes.plot(marked[1], marked[0], "P", color="#e4572e", markeredgecolor="white")
    figure.colorbar(_color_map(signed), ax=grid, label="relative to the maximum")
    save_figure(figure, path, 110)
