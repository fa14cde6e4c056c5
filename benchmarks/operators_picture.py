"""Draw the picture of docs/start.md: what one position of a scene attends to, by operator.

    python -m benchmarks.operators_picture docs/images/operators.png

A small segmentor with four heads, one for each operator, is trained on embedded scenes (three
minutes on one CPU core). The picture shows `attention_map` on a new scene: for external attention
the sum over slots of the marked position's weights times each position's, for the others the mean
magnitude over heads. Colors follow the square root.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.datasets.shapes import METAINFO, render
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ManhattanAttention, ReAttention
from mmseg_ext.reports.pictures import colorize

CHANNELS = 64
SIZE, CROP = 32, 16  # height and width of the maps in the picture and in training
SCENES, STEPS, BATCH = 200, 600, 12
UNSEEN, MARKED = 1015, (52, 84)  # the scene of the picture, and a row and column in it
CAPTIONS = {
    "scene": "circle: the query\nposition",
    "classes": "predicted by the\nfour heads together",
    "external attention": "the entire scene, through\n64 learned memory slots",
    "Manhattan attention": "the entire scene, fading\nwith |dx| + |dy|",
    "lambda layer": "a window of 15 x 15 and,\nfainter, the entire scene",
    "re-attention": "the entire scene, by heads\nthat are mixed",
}


class FourHeads(nn.Module):
    """Logits (B, 6, H / 4, W / 4) of each head, for scenes (B, 3, H, W) in -1..1."""

    def __init__(self):
        super().__init__()
        sizes = [3, 32, *[CHANNELS] * 4]
        parts = []
        for i, (stride, dilation) in enumerate([(2, 1), (2, 1), (1, 1), (1, 2), (1, 4)]):
            conv = nn.Conv2d(*sizes[i : i + 2], 3, stride, dilation, dilation, bias=False)
            parts += [conv, nn.BatchNorm2d(sizes[i + 1]), nn.ReLU()]
        self.stem = nn.Sequential(*parts)
        self.external = ExternalAttention2d(CHANNELS, memory_size=64)
        self.manhattan = ManhattanAttention(CHANNELS, num_heads=4)
        self.window = LambdaLayer(CHANNELS, receptive_field=15)
        nn.init.zeros_(self.window.position.weight)  # so the picture shows only learned weights
        self.mixed = ReAttention(CHANNELS, num_heads=4, reference_tokens=CROP**2)
        self.classify = nn.ModuleList(nn.Conv2d(CHANNELS, 6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        y = [self.external(x), self.manhattan(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)]
        mixed = self.mixed(x.flatten(2).transpose(1, 2)).transpose(1, 2)
        y += [self.window(x), mixed.view_as(x)]
        return [classify(x + part) for classify, part in zip(self.classify, y, strict=True)]

    @torch.no_grad()
    def attended(self, x: Tensor, at: tuple[int, int]) -> list[Tensor]:
        """Return the attention of position `at` (row, column) by each operator, (SIZE, SIZE)."""
        x = self.stem(x)
        slots = self.external.attention_map(x)[0]  # (S, H, W)
        row = self.mixed.attention_map(x.flatten(2).transpose(1, 2))[0, :, at[0] * SIZE + at[1]]
        maps = [
            torch.einsum("s,shw->hw", slots[:, at[0], at[1]], slots),
            self.manhattan.attention_map(x.permute(0, 2, 3, 1), at),
            self.window.attention_map(x, at),
            row - row.mean(1, keepdim=True),
        ]
        return [weights.abs().reshape(-1, SIZE, SIZE).mean(0) for weights in maps]


def scenes(indices) -> tuple[Tensor, Tensor]:
    """Return embedded scenes (B, 3, H, W) in -1..1 and their labels at the maps' size."""
    pictures, labels = zip(*(render(0, int(i)) for i in indices), strict=True)
    x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 127.5 - 1
    return x, torch.from_numpy(np.stack(labels)[:, 2::4, 2::4]).long()


def train() -> FourHeads:
    model, (x, labels) = FourHeads(), scenes(range(SCENES))
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS, pct_start=0.15)
    for step in range(STEPS):
        chosen = torch.randint(SCENES, (BATCH,))
        top, left = torch.randint(SIZE - CROP + 1, (2,)).tolist()
        a = x[chosen, :, 4 * top : 4 * (top + CROP), 4 * left : 4 * (left + CROP)]
        b = labels[chosen, top : top + CROP, left : left + CROP]
        if step % 2:
            a, b = a.flip(-1), b.flip(-1)
        loss = sum(F.cross_entropy(y, b) for y in model(a))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def draw(model: FourHeads, path: Path) -> None:
    x, _ = scenes([UNSEEN])
    scene = ((x[0].permute(1, 2, 0) + 1) / 2).numpy()
    with torch.no_grad():
        logits = sum(y.softmax(1) for y in model(x))
    classes = F.interpolate(logits, scale_factor=4, mode="bilinear")[0].argmax(0).numpy()
    panels = [scene, colorize(classes, METAINFO["palette"])]
    panels += model.attended(x, tuple(p // 4 for p in MARKED))
    figure = Figure(figsize=(7.5, 6.7), layout="constrained", facecolor="white")
    axes = figure.subplots(2, 3).flat
    for axis, panel, (name, caption) in zip(axes, panels, CAPTIONS.items(), strict=True):
        if panel.ndim == 3:
            axis.imshow(panel)
        else:
            axis.imshow(0.55 * scene.mean(2), cmap="gray", vmin=0, vmax=1)
            grown = F.interpolate(panel[None, None], scale_factor=4, mode="bilinear")[0, 0]
            heat = (grown / grown.quantile(0.995)).clamp(0, 1).sqrt().numpy()
            axis.imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=0.2 + 0.75 * heat)
        for color, width in (("white", 4.5), ("#0a84ff", 2.5)):
            axis.plot(*MARKED[::-1], "o", ms=15, mfc="none", mec=color, mew=width)
        axis.set(xticks=[], yticks=[])
        axis.set_title(name, fontsize=14, fontweight="bold")
        axis.set_xlabel(caption, fontsize=12.5)
    save_figure(figure, path, 110)


if __name__ == "__main__":
    torch.manual_seed(0)
    draw(train(), Path(sys.argv[1]))
