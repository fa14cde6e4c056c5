"""The README's picture of the four operators: what one position of a scene attends to.

One small segmentor is trained on embedded scenes: a stem of five convolutions and four heads, each
with one operator and a loss of its own. Drawn over a scene that it has not seen are the weights
of `attention_map`: of external attention the sum over slots of the marked position's and of every
position's, of the others the mean magnitude over heads. Two and a half minutes of one CPU core:

    python -m benchmarks.operators_picture docs/images/operators.png
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.datasets.shapes import render
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ManhattanAttention, ReAttention

CHANNELS = 64
SIZE = 32  # height and width of the maps, a quarter of the scene's
SCENES, STEPS, BATCH = 240, 450, 6
UNSEEN, MARKED = 1003, (60, 60)  # the scene that is drawn, and a row and column in it
REACH = {
    "external attention": "the whole scene, through\n64 learned memory slots",
    "Manhattan attention": "the whole scene, fading\nwith |dx| + |dy|",
    "lambda layer": "a window of 15 x 15 and,\nfainter, the whole scene",
    "re-attention": "the whole scene, by heads\nthat are mixed",
}


class FourHeads(nn.Module):
    """Logits (B, 6, SIZE, SIZE) by operator, for scenes (B, 3, 4 SIZE, 4 SIZE) in -1..1."""

    def __init__(self):
        super().__init__()

        def conv(before: int, after: int, stride: int, dilation: int) -> nn.Sequential:
            layer = nn.Conv2d(before, after, 3, stride, dilation, dilation, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU())

        plan = [(3, 32, 2, 1), (32, CHANNELS, 2, 1)] + [
            (CHANNELS, CHANNELS, 1, d) for d in (1, 2, 4)
        ]
        self.stem = nn.Sequential(*(conv(*sizes) for sizes in plan))
        self.place = nn.Parameter(torch.zeros(1, SIZE**2, CHANNELS))  # for re-attention's tokens
        layers = [
            ExternalAttention2d(CHANNELS, memory_size=64),
            ManhattanAttention(CHANNELS, num_heads=4),
            LambdaLayer(CHANNELS, receptive_field=15),
            ReAttention(CHANNELS, num_heads=4),
        ]
        nn.init.zeros_(layers[2].position.weight)  # what is drawn was learned
        self.layers = nn.ModuleDict(zip(REACH, layers, strict=True))
        self.classify = nn.ModuleDict({name: nn.Conv2d(CHANNELS, 6, 1) for name in REACH})

    def inputs(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        return [x, x.permute(0, 2, 3, 1), x, x.flatten(2).transpose(1, 2) + self.place]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {}
        for (name, layer), given in zip(self.layers.items(), self.inputs(x), strict=True):
            y = given + layer(given)
            y = (
                y
                if y.ndim == 4 and y.shape[1] == CHANNELS
                else y.reshape(len(x), SIZE, SIZE, -1).permute(0, 3, 1, 2)
            )
            found[name] = self.classify[name](y)
        return found

    @torch.no_grad()
    def attended(self, x: Tensor, at: tuple[int, int]) -> dict[str, Tensor]:
        """What position `at` (row, column) attends to, (SIZE, SIZE) by operator."""
        whole, last, _, tokens = self.inputs(x)
        slots, near, window, mixed = self.layers.values()
        use = slots.attention_map(whole)[0]  # (S, H, W)
        row = mixed.attention_map(tokens)[0, :, at[0] * SIZE + at[1]]  # (heads, N)
        maps = [
            torch.einsum("s,shw->hw", use[:, at[0], at[1]], use),
            near.attention_map(last, at),
            window.attention_map(whole, at),
            row - row.mean(1, keepdim=True),
        ]
        return {
            n: m.abs().reshape(-1, SIZE, SIZE).mean(0) for n, m in zip(REACH, maps, strict=True)
        }


def scenes(indices) -> tuple[Tensor, Tensor]:
    """Embedded scenes (B, 3, H, W) in -1..1 and their labels at the maps' size."""
    pictures, labels = zip(*(render(0, int(i)) for i in indices), strict=True)
    x = torch.from_numpy(np.stack(pictures)[..., ::-1].copy()).permute(0, 3, 1, 2) / 127.5 - 1
    return x, torch.from_numpy(np.stack(labels)[:, 2::4, 2::4]).long()


def train() -> FourHeads:
    model, (x, labels) = FourHeads(), scenes(range(SCENES))
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS, pct_start=0.15)
    for step in range(STEPS):
        chosen = torch.randint(SCENES, (BATCH,))
        a, b = (t[chosen].flip(-1) if step % 2 else t[chosen] for t in (x, labels))
        losses = {n: F.cross_entropy(y, b) for n, y in model(a).items()}
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(
                step + 1, *(f"{n} {float(v):.3f}" for n, v in losses.items()), sep="  ", flush=True
            )
    return model.eval()
