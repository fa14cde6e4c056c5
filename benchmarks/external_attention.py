"""Print the tables of docs/external_attention.md.

`blocks` has the units of table 8 of arXiv 2105.02358 and of the table that it extends (arXiv
2109.04553): parameters in 2^20, multiply-adds in 10^9, some truncated.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmseg.models.decode_heads.da_head import CAM, PAM
from mmseg.models.decode_heads.dm_head import DCM
from mmseg.models.decode_heads.ham_head import Hamburger
from torch import Tensor, nn

from benchmarks.tables import (
    Case,
    command,
    in_published_order,
    inference_step,
    timed,
)
from mmseg_ext import register_all_modules
from mmseg_ext.comparison.timing import compare_times
from mmseg_ext.cost.model_cost import MultiplyAdds, count_multiply_adds
from mmseg_ext.layers import ExternalAttention2d
from mmseg_ext.layers import _composed_external_attention as composed

CHANNELS = 512
_BN = {"type": "BN"}


class ComposedExternalAttention(ExternalAttention2d):
    """External attention with composed weights on any device and for any size."""

    def forward(self, x: Tensor) -> Tensor:
        if not composed.is_possible(self):
            return self.published_order(x)  # modules with hooks are counted one by one
        return composed.attend(self, x)


class PositionSelfAttention(nn.Module):
    """softmax(Q K^T) V over all positions with four 1x1 convolutions and a residual."""

    def __init__(self, channels: int):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Conv2d(channels, channels, 1, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        projected = (f(x).flatten(2) for f in (self.query, self.key, self.value))
        query, key, value = (t.transpose(1, 2).contiguous()[:, None] for t in projected)
        # Of (B, 1, N, C); the fused kernel does not store the N x N weights.
        attended = F.scaled_dot_product_attention(query, key, value, scale=1.0)[:, 0]  # (B, N, C)
        return x + self.out(attended.transpose(1, 2).reshape(x.shape))


class StoredSelfAttention(PositionSelfAttention):
    """The same function, which stores the weights of all pairs of positions."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (f(x).flatten(2) for f in (self.query, self.key, self.value))
        attention = (query.transpose(1, 2) @ key).softmax(dim=-1)  # (B, N, N)
        attended = value @ attention.transpose(1, 2)  # (B, C, N)
        return x + self.out(attended.view_as(x))


class DoubleAttention(PositionSelfAttention):
    """A2-Net, arXiv 1810.11579: gather C global descriptors, distribute them to the positions."""

    def forward(self, x: Tensor) -> Tensor:
        gather = self.key(x).flatten(2).softmax(dim=2)  # (B, C, N)
        distribute = self.query(x).flatten(2).softmax(dim=1)  # (B, C, N)
        descriptors = self.value(x).flatten(2) @ gather.transpose(1, 2)  # (B, C, C)
        return x + self.out((descriptors @ distribute).view_as(x))


class Summed(nn.ModuleList):
    """Branches that read the same map, summed."""

    def forward(self, x: Tensor) -> Tensor:
        return sum(branch(x) for branch in self)


def dual_attention(channels: int) -> nn.Module:
    """Build DANet's block (arXiv 1809.02983): two attentions with 3x3 convolutions, summed."""
    attentions = (PAM(channels, channels // 8), CAM())
    convs = (ConvModule(channels, channels, 3, padding=1, norm_cfg=_BN) for _ in attentions)
    return Summed(nn.Sequential(*pair) for pair in zip(attentions, convs, strict=True))


def dynamic_filters(channels: int) -> nn.Module:
    """Build the four filters of mmseg's DMNet."""
    options = {"conv_cfg": None, "norm_cfg": _BN, "act_cfg": {"type": "ReLU"}}
    return Summed(DCM(size, True, channels, channels, **options) for size in (1, 3, 5, 7))


def published_attention(channels: int, **options) -> nn.Module:
    return in_published_order(ExternalAttention2d(channels, **options))


class Block(NamedTuple):
    """A block's builder, and the paper's parameters in 2^20 and multiply-adds in 10^9."""

    build: Callable[[int], nn.Module]
    paper: tuple[float, float] | None = None


BLOCKS = {
    "self-attention": Block(PositionSelfAttention, (1.00, 292)),
    "self-attention, stored weights": Block(StoredSelfAttention),
    "dual attention (DA)": Block(dual_attention, (4.82, 79.5)),
    "double attention (A2)": Block(DoubleAttention, (1.01, 25.7)),
    "dynamic multi-scale filters (DM)": Block(dynamic_filters, (3.00, 35.1)),
    "Hamburger (NMF)": Block(lambda c: Hamburger(c, {"MD_R": 64}, _BN), (0.50, 17.6)),
    "EA, one memory": Block(lambda c: published_attention(c, tied=True), (0.55, 9.2)),
    "EA, published order": Block(published_attention),
    "EA, composed": Block(ComposedExternalAttention),
}


def count_block(name: str) -> tuple[int, MultiplyAdds]:
    """Return parameters and multiply-adds on one map."""
    with torch.device("meta"):
        block = BLOCKS[name].build(CHANNELS).eval()
        counted = count_multiply_adds(block, torch.empty(1, CHANNELS, 128, 128))
    return sum(p.numel() for p in block.parameters()), counted


def blocks(rounds: int):
    """List parameters and multiply-adds of all blocks, and time and memory of inference."""
    x = torch.randn(1, CHANNELS, 128, 128)
    steps = {n: inference_step(b.build(CHANNELS), x) for n, b in BLOCKS.items()}
    measured = compare_times(steps, rounds)
    rows = []
    for name, block in BLOCKS.items():
        parameters, counted = count_block(name)
        paper = [f"{value:g}" for value in block.paper] if block.paper else ["", ""]
        giga = [f"{count / 1e9:.2f}" for count in counted]
        cost = [f"{measured[name].ms:.1f}", f"{measured[name].mib:.0f}"]
        counts = [f"{parameters:,}", f"{parameters / 2**20:.2f}", paper[0], *giga, paper[1]]
        rows.append([name, *counts, *cost])
    headings = ["", "parameters", "in 2^20", "paper", "GMAC, modules", "GMAC, all", "paper"]
    return [*headings, "inference, ms", "MiB"], rows


def speed() -> Iterator[Case]:
    """Compare the published order with the composed form on square maps."""
    published = published_attention(CHANNELS)
    composed = ComposedExternalAttention(CHANNELS)
    composed.load_state_dict(published.state_dict())
    ways = {"published order": published, "composed": composed}
    for side in (128, 64, 32, 16, 8):
        yield Case(f"{side} x {side}", ways, torch.randn(1, CHANNELS, side, side))


PARTS = {"blocks": blocks, "speed": timed(speed)}

if __name__ == "__main__":
    register_all_modules()
    command("External attention: counts, speed and memory of its forms.", PARTS)
