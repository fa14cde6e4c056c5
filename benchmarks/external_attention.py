"""The tables of docs/benchmarks/external_attention.md.

The published order is the layer's own; it holds the same weights as the forms it is compared with.
The yardstick for what is left is a plain copy of the feature map: one read and one write.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from mmcv.cnn import ConvModule
from mmseg.registry import MODELS
from torch import nn

from benchmarks.contest import (
    Entrant,
    Settings,
    Table,
    command,
    contest,
    entrants_table,
    module_contest,
)
from mmseg_ext import register_all_modules
from mmseg_ext.cost.attention_blocks import PublishedExternalAttention, attention_blocks
from mmseg_ext.cost.cost_table import inference_step
from mmseg_ext.inference.fusion import fuse_model
from mmseg_ext.layers import ExternalAttention2d, MultiHeadExternalAttention

CHANNELS = 512
SPEED_SIDES = (128, 64, 32, 16, 12, 9, 8, 4)
RESOLUTION_SIDES = (16, 32, 48, 64, 96, 128)
_COLOURS = ("#e4572e", "#5b6270", "#2f6fde", "#2a9d6f")


class Copy(nn.Module):
    """One read and one write of a map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def speed(settings: Settings) -> Table:
    """The published order against the composed and the fused form on square maps."""
    published = PublishedExternalAttention(CHANNELS)
    composed = ExternalAttention2d(CHANNELS)
    composed.load_state_dict(published.state_dict())
    ways = {
        "published order": published,
        "composed": composed,
        "fused": composed.fuse(),
        "copy": Copy(),
    }
    entrants = []
    for side in SPEED_SIDES:
        x = torch.randn(1, CHANNELS, side, side)
        entrants += module_contest(f"{side} x {side}", ways, x, settings)
    return entrants_table(entrants)


def head(settings: Settings) -> Table:
    """The fused `EAHead` against its two 3x3 convolutions alone, at 2048 x 64 x 64."""
    config = {"type": "EAHead", "in_channels": 2048, "in_index": 0, "num_classes": 21}
    fused = fuse_model(MODELS.build(config)).to(settings.device)
    convolutions = nn.Sequential(
        *(m.conv for m in (fused.conv_in, fused.conv_out) if isinstance(m, ConvModule))
    )
    x = torch.randn(1, 2048, 64, 64, device=settings.device)
    steps = {
        "convolutions": inference_step(convolutions, x),
        "fused EAHead": inference_step(fused, [x]),
    }
    return entrants_table(contest("2048 x 64 x 64", steps, settings))


def tokens(settings: Settings) -> Table:
    """The multi-head form of EAMLP's width, as published and fused."""
    entrants = []
    layer = MultiHeadExternalAttention(384, 6)
    for batch, count in ((1, 197), (8, 197), (1, 1025)):
        ways = {"published order": layer, "fused": layer.fuse()}
        x = torch.randn(batch, count, 384)
        entrants += contest(
            f"batch {batch}, {count} tokens",
            {name: inference_step(module, x) for name, module in ways.items()},
            settings,
        )
    return entrants_table(entrants)


def resolution(settings: Settings) -> Table:
    """Self-attention and external attention against the number of positions."""
    blocks = attention_blocks(CHANNELS)
    names = ("self-attention", "EA, plain", "EA, fused")
    modules = {name: blocks[name].build().to(settings.device) for name in names}
    entrants = []
    for side in RESOLUTION_SIDES:
        x = torch.randn(1, CHANNELS, side, side, device=settings.device)
        steps = {name: inference_step(module, x) for name, module in modules.items()}
        entrants += contest(f"{side} x {side}", steps, settings)
    if settings.figures is not None:
        plot_resolution(entrants, settings.figures / "external_attention_resolution.png")
    return entrants_table(entrants)


def plot_resolution(entrants: Sequence[Entrant], path: Path) -> None:
    """Time (left) and peak memory (right) against the positions, both axes logarithmic."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    sides = sorted({int(e.case.split(" x ")[0]) for e in entrants})
    names = list(dict.fromkeys(e.name for e in entrants))
    for axes, (field, label) in zip(
        panels, (("ms", "inference time, ms"), ("mib", "peak memory, MiB")), strict=True
    ):
        for name, colour in zip(names, _COLOURS, strict=False):
            values = [getattr(e, field) for e in entrants if e.name == name]
            # Below a memory page there is nothing to read off.
            points = [(s**2, value) for s, value in zip(sides, values, strict=True) if value > 0]
            axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=name)
        axes.set(xscale="log", yscale="log", xlabel="positions N = H x W", ylabel=label)
        axes.set_xticks([side**2 for side in sides], [f"{side}²" for side in sides])
        axes.minorticks_off()
        axes.grid(color="#d9dce1", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


PARTS = {"speed": speed, "head": head, "tokens": tokens, "resolution": resolution}

if __name__ == "__main__":
    register_all_modules()
    sys.exit(command("External attention: speed and memory of its forms.", PARTS))
