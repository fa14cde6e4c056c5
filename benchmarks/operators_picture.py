"""The README's picture of the four operators: what one position of a scene attends to.

Each layer, untrained, gets the same maps: the colours of an embedded scene and of its
neighbourhood under a fixed random projection, so that like surfaces have like features. Drawn are
the weights of `attention_map`: of external attention the sum over slots of the marked position's
and of every position's, of the others the mean magnitude over heads.

    python -m benchmarks.operators_picture docs/images/operators.png
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from mmseg_ext.datasets.shapes import render
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ManhattanAttention, ReAttention

CHANNELS = 64
SIZE = 48  # height and width of the maps
MARKED = (36, 60)  # row and column in the scene of 128 x 128


def scene(index: int) -> tuple[Tensor, Tensor]:
    """An embedded scene, RGB (H, W, 3), and its features (1, CHANNELS, SIZE, SIZE)."""
    picture, _ = render(0, index)
    picture = torch.from_numpy(picture[:, :, ::-1].copy())
    small = F.interpolate(picture.permute(2, 0, 1)[None] / 255, size=(SIZE, SIZE), mode="area")
    around = F.avg_pool2d(small, 5, stride=1, padding=2, count_include_pad=False)
    features = torch.cat([small, around], dim=1)
    features = (features - features.mean((2, 3), True)) / features.std((2, 3), keepdim=True)
    projection = torch.randn(CHANNELS, features.shape[1], 1, 1) / features.shape[1] ** 0.5
    return picture, F.conv2d(features, projection)


@torch.no_grad()
def attended(x: Tensor, at: tuple[int, int]) -> dict[str, tuple[Tensor, str]]:
    """By operator a map (SIZE, SIZE) and what it reaches."""
    slots = ExternalAttention2d(CHANNELS, memory_size=64).eval().attention_map(x)[0]  # (S, H, W)
    external = torch.einsum("s,shw->hw", slots[:, at[0], at[1]], slots)
    manhattan = ManhattanAttention(CHANNELS, num_heads=4).eval()
    near = manhattan.attention_map(x.permute(0, 2, 3, 1), at)  # (1, n, 1, N)
    lambdas = LambdaLayer(CHANNELS, receptive_field=23).eval().attention_map(x, at)
    mixed = ReAttention(CHANNELS, num_heads=8).eval().attention_map(x.flatten(2).transpose(1, 2))
    row = mixed[0, :, at[0] * SIZE + at[1]]  # (heads, N)
    row = row - row.mean(1, keepdim=True)

    def magnitude(weights: Tensor) -> Tensor:
        return weights.abs().reshape(-1, SIZE, SIZE).mean(0)

    return {
        "external attention": (external, "the whole scene, through\n64 learned memory slots"),
        "Manhattan attention": (magnitude(near), "the whole scene, less\nwith |dx| + |dy|"),
        "lambda layer": (magnitude(lambdas), "a window of 23 x 23 and,\nfainter, all of the scene"),
        "re-attention": (magnitude(row), "the whole scene, by heads\nthat are mixed"),
    }


def draw(path: Path) -> None:
    """Write the picture."""
    torch.manual_seed(0)
    picture, x = scene(3)
    at = tuple(p * SIZE // len(picture) for p in MARKED)
    panels = [("scene", picture, MARKED, "circle: the position\nthat is looked from")]
    panels += [(name, m, at, reach) for name, (m, reach) in attended(x, at).items()]
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    for axis, (name, values, (row, column), reach) in zip(
        figure.subplots(1, len(panels)), panels, strict=True
    ):
        brightest = values.flatten().float().quantile(0.995)
        axis.imshow(values, cmap="magma", vmin=0, vmax=brightest)
        axis.plot(column, row, "o", ms=9, mfc="none", mec="#2fd0ff", mew=1.8)
        axis.set(title=name, xticks=[], yticks=[])
        axis.set_xlabel(reach, fontsize=9)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    draw(Path(*sys.argv[1:]) if sys.argv[1:] else Path("docs/images/operators.png"))
