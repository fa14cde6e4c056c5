"""Pictures of what attention layers look at, as panels over the image."""

from collections.abc import Callable, Sequence
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
from mmseg_ext.inspection.attention_views import (
    decay_row,
    head_maps,
    lambda_response,
    manhattan_row,
    position_of,
    slot_maps,
    summarise_slots,
    token_grid,
)
from mmseg_ext.layers.external_attention import ExternalAttention2d
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.re_attention import ReAttention
from mmseg_ext.layers.token_external_attention import MultiHeadExternalAttention
from mmseg_ext.reports.panels import colourise

_SLOTS = 8
_HEADS = 8
_KERNELS = 16
_PANEL = 1.75  # inches


class Scene:
    """One image with its prediction: what every picture shows beside the maps.

    Args:
        image: (H, W, 3) uint8 RGB, of the size that the model sees.
        labels: predicted classes (H, W).
        pixel: the query, (row, column).
    """

    def __init__(
        self,
        image: np.ndarray,
        labels: Tensor,
        classes: Sequence[str],
        palette: Sequence[Sequence[int]],
        pixel: tuple[int, int],
    ):
        self.image = image
        self.labels = labels
        self.classes = classes
        self.palette = palette
        self.pixel = pixel
        self.size = image.shape[:2]


class Panels:
    """A grid of small pictures with titles and a colour bar, saved as PNG."""

    def __init__(self, rows: int, columns: int, title: str, aspect: float = 1.0):
        height = rows * (_PANEL * aspect + 0.27) + 0.5
        figure = Figure(figsize=(columns * _PANEL, height), layout="constrained")
        self.figure = figure
        figure.suptitle(title, fontsize=10)
        self.grid = figure.subplots(rows, columns, squeeze=False)
        for axes in self.grid.flat:
            axes.axis("off")

    def show(self, row: int, column: int, picture: np.ndarray, title: str = "", **options):
        axes = self.grid[row, column]
        axes.imshow(picture, **options)
        axes.set_title(title, fontsize=8, pad=2, parse_math=False)

    def mark(self, row: int, column: int, pixel: tuple[int, int]) -> None:
        """A cross on a pixel of a picture of the scene's size."""
        self.grid[row, column].plot(
            pixel[1], pixel[0], "+", color="white", markersize=9, markeredgewidth=2.6
        )
        self.grid[row, column].plot(
            pixel[1], pixel[0], "+", color="#e4572e", markersize=8, markeredgewidth=1.4
        )

    def bar(self, colours: str, low: float, rows: slice = slice(None)) -> None:
        """What the colours of these rows say: shares of each picture's largest absolute value."""
        scale = ScalarMappable(Normalize(low, 1), colours)
        bar = self.figure.colorbar(scale, ax=self.grid[rows], shrink=0.8, pad=0.01, aspect=30)
        bar.set_label("of the picture's largest", fontsize=7)
        bar.ax.tick_params(labelsize=7)

    def save(self, path: Path) -> None:
        save_figure(self.figure, path, 110)


def overlay(image: np.ndarray, heat: Tensor, colours: str = "magma") -> np.ndarray:
    """A map (h, w) over a grey image (H, W, 3), (H, W, 3) in [0, 1]; its maximum is brightest."""
    grown = nn.functional.interpolate(heat[None, None].float(), image.shape[:2], mode="nearest")
    values = (grown[0, 0] / grown.max().clamp_min(1e-12)).clamp_min(0).cpu().numpy()
    grey = image.mean(-1, keepdims=True) / 255
    return 0.3 * grey + 0.7 * matplotlib.colormaps[colours](values)[..., :3]


def _signed(image: np.ndarray, heat: Tensor) -> np.ndarray:
    """The same for maps with negative values: zero is pale, red positive, blue negative."""
    grown = nn.functional.interpolate(heat[None, None].float(), image.shape[:2], mode="nearest")
    values = (grown[0, 0] / grown.abs().max().clamp_min(1e-12)).cpu().numpy()
    grey = image.mean(-1, keepdims=True) / 255
    return 0.25 * grey + 0.75 * matplotlib.colormaps["RdBu_r"](0.5 + values / 2)[..., :3]


def _aspect(scene: Scene) -> float:
    return scene.size[0] / scene.size[1]


def draw_slots(layer: nn.Module, x: Tensor, scene: Scene, title: str, path: Path) -> str:
    """The strongest memory slots of external attention, each with the class it prefers."""
    slots = summarise_slots(slot_maps(layer, x, scene.size), scene.labels, len(scene.classes))
    count = min(_SLOTS, len(slots.maps))
    columns = 5
    panels = Panels(-(-(count + 2) // columns), columns, title, _aspect(scene))
    panels.show(0, 0, scene.image, "image")
    panels.show(0, 1, colourise(scene.labels.cpu().numpy(), scene.palette), "prediction")
    told = []
    for i in range(count):
        best = int(slots.lift[i].argmax())
        name, lift = scene.classes[best], float(slots.lift[i, best])
        text = f"slot {int(slots.index[i])}: {100 * float(slots.mass[i]):.1f} %"
        row, column = divmod(i + 2, columns)
        panels.show(
            row, column, overlay(scene.image, slots.maps[i]), f"{text}\n{name} × {lift:.1f}"
        )
        told.append(f"{text} of the mass, {name} {lift:.1f} times its area's part")
    panels.bar("magma", 0)
    panels.save(path)
    covered = 100 * float(slots.mass[:count].sum())
    return f"the {count} strongest slots hold {covered:.0f} %; {told[0]}"


def draw_manhattan(
    layer: ManhattanAttention, x: Tensor, scene: Scene, title: str, path: Path
) -> str:
    """Decay, full and decomposed attention of each head from one position."""
    grid = tuple(x.shape[1:3])
    position = position_of(scene.pixel, scene.size, grid)
    rows = {
        "decay": decay_row(layer, grid, position),
        "whole map": manhattan_row(layer, x, position, decomposed=False),
        "decomposed": manhattan_row(layer, x, position, decomposed=True),
    }
    used = "decomposed" if layer.decomposed else "whole map"
    heads = min(_HEADS, layer.num_heads)
    panels = Panels(len(rows), heads + 1, title, _aspect(scene))
    for i, (name, maps) in enumerate(rows.items()):
        note = " (the layer's)" if name == used else ""
        panels.show(i, 0, overlay(scene.image, maps.mean(0)), f"{name}{note}\nmean of heads")
        for h in range(heads):
            panels.show(i, h + 1, overlay(scene.image, maps[h]), f"head {h}")
        for column in range(heads + 1):
            panels.mark(i, column, scene.pixel)
    panels.bar("magma", 0)
    panels.save(path)
    reach = [_mean_distance(rows[used][h], position) for h in range(layer.num_heads)]
    return f"mean Manhattan distance by head {', '.join(f'{r:.1f}' for r in reach)} positions"


def _mean_distance(weights: Tensor, position: tuple[int, int]) -> float:
    """Mean Manhattan distance in positions under weights (h, w)."""
    rows, columns = (torch.arange(n, device=weights.device) for n in weights.shape)
    distance = (rows - position[0]).abs()[:, None] + (columns - position[1]).abs()
    return float((weights * distance).sum() / weights.sum())


def draw_lambda(layer: LambdaLayer, x: Tensor, scene: Scene, title: str, path: Path) -> str:
    """Position kernels of a lambda layer, and each head's response to one position's query."""
    grid = tuple(x.shape[2:])
    position = position_of(scene.pixel, scene.size, grid)
    response, _ = lambda_response(layer, x, position)
    parts = {"content": response.content, "position": response.position, "both": response.total}
    parts = {name: part.mean(1) for name, part in parts.items() if part is not None}
    weight = None if layer.embeddings is None else layer.embeddings.weight.detach().mean(1)
    kernels = 0 if weight is None else min(_KERNELS, len(weight))
    columns = max(layer.num_heads, 8)
    kernel_rows = -(-kernels // columns)
    panels = Panels(kernel_rows + len(parts), columns, title, _aspect(scene))
    for i in range(kernels):
        limit = float(weight[i].abs().max())
        options = dict(cmap="RdBu_r", vmin=-limit, vmax=limit)
        panels.show(*divmod(i, columns), weight[i].cpu().numpy(), f"E, key {i}", **options)
    for i, (name, maps) in enumerate(parts.items()):
        for h in range(layer.num_heads):
            picture = _signed(scene.image, maps[h])
            panels.show(kernel_rows + i, h, picture, f"{name}, head {h}")
            panels.mark(kernel_rows + i, h, scene.pixel)
    panels.bar("RdBu_r", -1)
    panels.save(path)
    sizes = [f"{name} {float(maps.abs().sum((1, 2)).mean()):.3g}" for name, maps in parts.items()]
    return f"sum of absolute weights, mean of heads: {', '.join(sizes)}"


def draw_heads(layer: ReAttention, x: Tensor, scene: Scene, title: str, path: Path) -> str:
    """The heads' maps from one patch before and after re-attention."""
    grid = token_grid(x.shape[1], scene.size)
    row, column = position_of(scene.pixel, scene.size, grid)
    query = 1 + row * grid[1] + column
    before, after = (maps[:, query, 1:].unflatten(1, grid) for maps in head_maps(layer, x))
    heads = min(_HEADS, layer.num_heads)
    panels = Panels(2, heads, title, _aspect(scene))
    for h in range(heads):
        panels.show(0, h, overlay(scene.image, before[h]), f"softmax, head {h}")
        panels.show(1, h, _signed(scene.image, after[h]), f"re-attention, head {h}")
        panels.mark(0, h, scene.pixel)
        panels.mark(1, h, scene.pixel)
    panels.bar("magma", 0, slice(0, 1))
    panels.bar("RdBu_r", -1, slice(1, 2))
    panels.save(path)
    return f"heads alike {_alike(before):.3f} before, {_alike(after):.3f} after (cosine)"


def _alike(maps: Tensor) -> float:
    """Mean cosine of two different heads' maps (H, h, w)."""
    unit = nn.functional.normalize(maps.flatten(1), dim=1)
    cosine = unit @ unit.t()
    heads = len(maps)
    return float((cosine.sum() - cosine.diagonal().sum()) / max(heads * (heads - 1), 1))


_DRAW: dict[type[nn.Module], Callable[..., str]] = {
    ExternalAttention2d: draw_slots,
    JSegEAHead: draw_slots,
    MultiHeadExternalAttention: draw_slots,
    ManhattanAttention: draw_manhattan,
    LambdaLayer: draw_lambda,
    ReAttention: draw_heads,
}


def draw_layer(layer: nn.Module, x: Tensor, scene: Scene, title: str, path: Path) -> str:
    """The picture of a layer for its input x, as PNG; returns a line that says what is seen."""
    for kind, draw in _DRAW.items():
        if isinstance(layer, kind):
            return draw(layer, x, scene, title, path)
    raise ValueError(f"layer must be one of {', '.join(k.__name__ for k in _DRAW)}: {layer}")
