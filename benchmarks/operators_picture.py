"""The README's picture of the four operators: what one position of a scene attends to.

Each layer, untrained, gets the same maps: the colours of an embedded scene and of its
neighbourhood under a fixed random projection, so that like surfaces have like features. The maps
are the layers' own (`attention_map`):

- external attention: sum over slots of the marked position's attention and of every position's, so
  that positions that use the same slots are bright;
- Manhattan attention: the row of the decomposed map, mean over heads;
- lambda layer: the weight that the marked query's lambda gives to each value, mean magnitude;
- re-attention: the row of the map after the heads are mixed, mean magnitude.

    python -m benchmarks.operators_picture docs/images/operators.png
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmseg_ext.datasets.shapes import render
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ManhattanAttention, ReAttention

CHANNELS = 64
SIZE = 48  # height and width of the maps
SCENE = 3
MARKED = (36, 60)  # row and column in the scene


def scene(index: int) -> tuple[np.ndarray, Tensor]:
    """An embedded scene, RGB (H, W, 3), and its features (1, CHANNELS, SIZE, SIZE)."""
    picture, _ = render(0, index)
    colours = torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1)[None].float() / 255
    small = F.interpolate(colours, size=(SIZE, SIZE), mode="area")
    around = F.avg_pool2d(small, 5, stride=1, padding=2, count_include_pad=False)
    features = torch.cat([small, around], dim=1)
    features = (features - features.mean((2, 3), True)) / features.std((2, 3), keepdim=True)
    projection = torch.randn(CHANNELS, features.shape[1], 1, 1) / features.shape[1] ** 0.5
    return picture[:, :, ::-1], F.conv2d(features, projection)


@torch.no_grad()
def external(x: Tensor, at: tuple[int, int]) -> Tensor:
    slots = ExternalAttention2d(CHANNELS, memory_size=64).eval().attention_map(x)[0]  # (S, H, W)
    return torch.einsum("s,shw->hw", slots[:, at[0], at[1]], slots)


@torch.no_grad()
def manhattan(x: Tensor, at: tuple[int, int]) -> Tensor:
    layer = ManhattanAttention(CHANNELS, num_heads=4).eval()
    weights = layer.attention_map(x.permute(0, 2, 3, 1), at)  # (1, n, 1, N)
    return weights[0, :, 0].mean(0).unflatten(0, (SIZE, SIZE))


@torch.no_grad()
def lambdas(x: Tensor, at: tuple[int, int]) -> Tensor:
    weights = LambdaLayer(CHANNELS, receptive_field=23).eval().attention_map(x, at)
    return weights[0, :, :, 0].abs().mean((0, 1)).unflatten(0, (SIZE, SIZE))


@torch.no_grad()
def re_attention(x: Tensor, at: tuple[int, int]) -> Tensor:
    maps = ReAttention(CHANNELS, num_heads=8).eval().attention_map(x.flatten(2).transpose(1, 2))
    row = maps[0, :, at[0] * SIZE + at[1]]  # (heads, N)
    return (row - row.mean(1, keepdim=True)).abs().mean(0).unflatten(0, (SIZE, SIZE))


PANELS: dict[str, tuple[Callable[[Tensor, tuple[int, int]], Tensor], str]] = {
    "external attention": (external, "the whole scene, through\n64 learned memory slots"),
    "Manhattan attention": (manhattan, "the whole scene, less\nwith |dx| + |dy|"),
    "lambda layer": (lambdas, "a window of 23 x 23 and,\nfainter, all of the scene"),
    "re-attention": (re_attention, "the whole scene, by heads\nthat are mixed"),
}


def draw(path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    torch.manual_seed(0)
    picture, x = scene(SCENE)
    at = tuple(p * SIZE // n for p, n in zip(MARKED, picture.shape, strict=False))
    figure, axes = plt.subplots(1, 1 + len(PANELS), figsize=(11, 2.9), layout="constrained")
    axes[0].imshow(picture)
    axes[0].set_title("scene", fontsize=11)
    axes[0].set_xlabel("circle: the position\nthat is looked from", fontsize=9)
    _mark(axes[0], MARKED)
    for axis, (name, (attended, reach)) in zip(axes[1:], PANELS.items(), strict=True):
        values = attended(x, at)
        axis.imshow(values, cmap="magma", vmin=0, vmax=values.flatten().quantile(0.995))
        axis.set_title(name, fontsize=11)
        axis.set_xlabel(reach, fontsize=9)
        _mark(axis, at)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _mark(axis, at: tuple[int, int]) -> None:
    axis.plot(at[1], at[0], "o", ms=9, mfc="none", mec="#2fd0ff", mew=1.8)
    axis.set_xticks([])
    axis.set_yticks([])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, nargs="?", default=Path("docs/images/operators.png"))
    draw(parser.parse_args(argv).path)


if __name__ == "__main__":
    main()
