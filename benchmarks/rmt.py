"""The tables of docs/benchmarks/rmt.md: RMT against its plain formulation."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from benchmarks.contest import Settings, Table, command, contest, entrants_table
from benchmarks.reference.manhattan_attention import PlainManhattanAttention, PlainRMT
from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.cost.cost_table import MEBI, inference_step, training_step
from mmseg_ext.cost.measure import peak_memory
from mmseg_ext.layers import ManhattanAttention

WIDTHS = (256, 512, 1024, 1536, 2048)


def inference(settings: Settings) -> Table:
    """Every arch on an image of 512x512."""
    return _backbones(ARCHS, (1, 3, 512, 512), inference_step, settings)


def training(settings: Settings) -> Table:
    """Every arch, forward and backward on two images of 512x512."""
    return _backbones(ARCHS, (2, 3, 512, 512), training_step, settings)


def cityscapes(settings: Settings) -> Table:
    """`tiny` on an image of 1024x2048."""
    return _backbones(["tiny"], (1, 3, 1024, 2048), inference_step, settings)


def _backbones(archs: Sequence[str], shape: tuple[int, ...], step, settings: Settings) -> Table:
    entrants = []
    for arch in archs:
        model = RMT(arch).to(settings.device)
        x = torch.randn(shape, device=settings.device)
        ways = {"ours": step(model, x), "plain": step(PlainRMT(model), x)}
        entrants += contest(f"{arch}, {' x '.join(map(str, shape))}", ways, settings)
    return entrants_table(entrants)


def layer(settings: Settings) -> Table:
    """One layer with 8 heads of 32 over 64x128 positions, those of 1024x2048 in stage 3."""
    module = ManhattanAttention(256, 8, 2.0, 6.0, decomposed=False).to(settings.device)
    x = torch.randn(1, 64, 128, 256, device=settings.device)
    ways = {
        "ours": inference_step(module, x),
        "plain": inference_step(PlainManhattanAttention(module), x),
    }
    return entrants_table(contest("one layer, 64x128 positions", ways, settings))


def memory(settings: Settings) -> Table:
    """Peak MiB of inference on images of width / 2 by width."""
    curves: dict[str, list[float]] = {}
    for arch in ("tiny", "small"):
        model = RMT(arch).to(settings.device)
        forms: dict[str, nn.Module] = {"ours": model, "plain": PlainRMT(model)}
        for name, form in forms.items():
            curve = curves.setdefault(f"{arch}, {name}", [])
            for width in WIDTHS:
                x = torch.randn(1, 3, width // 2, width, device=settings.device)
                step = inference_step(form, x)
                if not curve:
                    step()  # loads the kernels
                curve.append(peak_memory(step, settings.device) / MEBI)
    if settings.figures is not None:
        plot_memory(curves, settings.figures / "rmt_memory.png")
    rows = [
        [f"{width // 2}x{width}", *(f"{curve[i]:.0f} MiB" for curve in curves.values())]
        for i, width in enumerate(WIDTHS)
    ]
    return Table(["image", *curves], rows)


def plot_memory(curves: dict[str, list[float]], path: Path) -> None:
    """Memory against the number of pixels, both logarithmic; a slope of one is drawn beside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    pixels = [width * (width // 2) for width in WIDTHS]
    for name, curve in curves.items():
        axes.plot(pixels, curve, "o-" if name.endswith("ours") else "s--", label=name)
    last = next(iter(curves.values()))[-1]
    ends = [pixels[0], pixels[-1]]
    axes.plot(ends, [last * p / ends[1] for p in ends], ":", color="grey", label="linear in pixels")
    axes.set(xscale="log", yscale="log", xlabel="image (H x W)", ylabel="peak memory (MiB)")
    axes.set_xticks(pixels, [f"{width // 2}x{width}" for width in WIDTHS], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


PARTS = {
    "inference": inference,
    "training": training,
    "cityscapes": cityscapes,
    "layer": layer,
    "memory": memory,
}

if __name__ == "__main__":
    sys.exit(command("RMT against its plain formulation: time and memory.", PARTS))
