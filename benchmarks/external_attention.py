"""How much faster composed external attention is than the paper's order of operations.

The plain block is the layer's published order; both hold the same
weights, run in one process and take turns. The yardstick for what is left is a plain copy of the
feature map: one read and one write of the tensor.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from mmcv.cnn import ConvModule
from mmseg.registry import MODELS
from torch import nn

from mmseg_ext import register_all_modules
from mmseg_ext.cost.attention_blocks import Entry, PublishedExternalAttention, attention_blocks
from mmseg_ext.cost.cost_table import MEBI, inference_step, machine, markdown, training_step
from mmseg_ext.cost.measure import median_ratio, paired_times, peak_memory
from mmseg_ext.deployment.fusion import fuse_model
from mmseg_ext.layers.external_attention import ExternalAttention2d


@dataclass
class Speed:
    """Medians in milliseconds; ratios are medians over pairs; memory in MiB above the start.

    `copy_fraction` is the time of a copy of the input over that of the fused block: the share of
    the memory bandwidth of a copy that the block would reach if it read and wrote the map once.
    """

    side: int
    plain_ms: float
    fused_ms: float
    inference_ratio: float
    plain_training_ms: float
    composed_training_ms: float
    training_ratio: float
    copy_ms: float
    copy_fraction: float
    plain_mib: float
    fused_mib: float
    plain_training_mib: float
    composed_training_mib: float


def _median_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)


def external_attention_speed(
    side: int,
    channels: int = 512,
    rounds: int = 15,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Speed:
    """Plain against fused inference and composed training at 1 x `channels` x `side` x `side`."""
    plain = PublishedExternalAttention(channels).to(device, dtype)
    composed = ExternalAttention2d(channels).to(device, dtype)
    plain.load_state_dict(composed.state_dict())
    x = torch.randn(1, channels, side, side, device=device, dtype=dtype)
    copied = torch.empty_like(x)
    inference = {
        "plain": inference_step(plain.eval(), x),
        "fused": inference_step(composed.eval().fuse(), x),
        "copy": lambda: copied.copy_(x),
    }
    times = paired_times(inference, rounds)
    memory = {name: peak_memory(step, device) / MEBI for name, step in inference.items()}
    training = {"plain": training_step(plain, x), "composed": training_step(composed, x)}
    training_times = paired_times(training, rounds)
    training_memory = {name: peak_memory(step, device) / MEBI for name, step in training.items()}
    return Speed(
        side=side,
        plain_ms=_median_ms(times["plain"]),
        fused_ms=_median_ms(times["fused"]),
        inference_ratio=median_ratio(times["plain"], times["fused"]),
        plain_training_ms=_median_ms(training_times["plain"]),
        composed_training_ms=_median_ms(training_times["composed"]),
        training_ratio=median_ratio(training_times["plain"], training_times["composed"]),
        copy_ms=_median_ms(times["copy"]),
        copy_fraction=median_ratio(times["copy"], times["fused"]),
        plain_mib=memory["plain"],
        fused_mib=memory["fused"],
        plain_training_mib=training_memory["plain"],
        composed_training_mib=training_memory["composed"],
    )


def head_over_convolutions(
    size: tuple[int, int] = (64, 64),
    in_channels: int = 2048,
    rounds: int = 15,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> float:
    """Time of the fused `EAHead` over that of its two 3x3 convolutions alone."""
    head = MODELS.build(
        {"type": "EAHead", "in_channels": in_channels, "in_index": 0, "num_classes": 21}
    )
    fused = fuse_model(head).to(device, dtype)
    convolutions = nn.Sequential(
        *(m.conv for m in (fused.conv_in, fused.conv_out) if isinstance(m, ConvModule))
    )
    x = torch.randn(1, in_channels, *size, device=device, dtype=dtype)
    step = inference_step(fused, [x])
    times = paired_times({"head": step, "convs": inference_step(convolutions, x)}, rounds)
    return median_ratio(times["head"], times["convs"])


def speed_markdown(speeds: Sequence[Speed]) -> str:
    headings = [
        "positions",
        "plain, ms",
        "fused, ms",
        "ratio",
        "copy, ms",
        "copy / fused",
        "plain step, ms",
        "composed step, ms",
        "ratio",
        "peak MiB, inference: plain",
        "fused",
        "training: plain",
        "composed",
    ]
    rows = [
        [
            f"{s.side} x {s.side}",
            f"{s.plain_ms:.2f}",
            f"{s.fused_ms:.2f}",
            f"{s.inference_ratio:.2f}",
            f"{s.copy_ms:.3f}",
            f"{s.copy_fraction:.2f}",
            f"{s.plain_training_ms:.2f}",
            f"{s.composed_training_ms:.2f}",
            f"{s.training_ratio:.2f}",
            f"{s.plain_mib:.1f}",
            f"{s.fused_mib:.1f}",
            f"{s.plain_training_mib:.1f}",
            f"{s.composed_training_mib:.1f}",
        ]
        for s in speeds
    ]
    return markdown(headings, rows)


def speed_json(speeds: Sequence[Speed]) -> list[dict]:
    return [asdict(speed) for speed in speeds]


@dataclass
class ResolutionCost:
    name: str
    side: int
    inference_ms: float
    inference_mib: float


def resolution_costs(
    entries: dict[str, Entry],
    sides: Sequence[int],
    channels: int = 512,
    rounds: int = 5,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[ResolutionCost]:
    """Inference time and peak memory of each entry on square maps of each side."""
    costs = []
    modules = {name: entry.build().to(device, dtype) for name, entry in entries.items()}
    for side in sides:
        x = torch.randn(1, channels, side, side, device=device, dtype=dtype)
        steps = {name: inference_step(module, x) for name, module in modules.items()}
        times = paired_times(steps, rounds, warmup=1)
        costs += [
            ResolutionCost(
                name, side, _median_ms(times[name]), peak_memory(steps[name], device) / MEBI
            )
            for name in entries
        ]
    return costs


def resolution_markdown(costs: Sequence[ResolutionCost]) -> str:
    names = list(dict.fromkeys(cost.name for cost in costs))
    headings = ["positions", *(f"{n}, {unit}" for n in names for unit in ("ms", "MiB"))]
    rows = []
    for side in dict.fromkeys(cost.side for cost in costs):
        row = [c for name in names for c in costs if (c.name, c.side) == (name, side)]
        cells = [text for c in row for text in (f"{c.inference_ms:.2f}", f"{c.inference_mib:.1f}")]
        rows.append([f"{side} x {side}", *cells])
    return markdown(headings, rows)


_COLOURS = ("#e4572e", "#5b6270", "#2f6fde", "#2a9d6f")


def plot_resolution(costs: Sequence[ResolutionCost], path: Path) -> None:
    """Time (left) and peak memory (right) against the positions, both axes logarithmic."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    fields = (("inference_ms", "inference time, ms"), ("inference_mib", "peak memory, MiB"))
    for axes, (field, label) in zip(panels, fields, strict=True):
        names = list(dict.fromkeys(cost.name for cost in costs))
        for name, colour in zip(names, _COLOURS, strict=False):
            points = [(c.side**2, getattr(c, field)) for c in costs if c.name == name]
            # Below a memory page there is nothing to read off.
            points = [(n, value) for n, value in points if value > 0]
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linewidth=1.8,
                marker="o",
                markersize=4,
                label=name,
            )
        axes.set(xscale="log", yscale="log", xlabel="positions N = H x W", ylabel=label)
        sides = list(dict.fromkeys(cost.side for cost in costs))
        axes.set_xticks([side**2 for side in sides], [f"{side}²" for side in sides])
        axes.minorticks_off()
        axes.grid(color="#d9dce1", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    resolution = commands.add_parser("resolution", help="time and memory against the resolution")
    speed = commands.add_parser("speed", help="external attention against the paper's order")
    for command, sides in ((resolution, (16, 32, 48, 64, 96, 128)), (speed, (128, 64, 32, 16, 8))):
        command.add_argument("--sides", type=int, nargs="+", default=sides, metavar="SIDE")
        command.add_argument("--channels", type=int, default=512)
        command.add_argument("--json", type=Path, help="write the numbers to this file")
        command.add_argument("--rounds", type=int, default=5, help="calls that a median is over")
        command.add_argument("--device", default="cpu")
        command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    names = ["self-attention", "EA, plain", "EA, fused"]
    resolution.add_argument("--only", nargs="+", metavar="NAME", default=names, help="rows to keep")
    resolution.add_argument("--plot", type=Path, help="draw the curves to this PNG")
    speed.add_argument("--head", action="store_true", help="also the head against its convolutions")
    args = parser.parse_args(argv)
    register_all_modules()
    torch.manual_seed(0)
    how = dict(rounds=args.rounds, device=args.device, dtype=getattr(torch, args.dtype))
    content = {"machine": machine(args.device), "dtype": args.dtype, "rounds": args.rounds}
    if args.command == "resolution":
        blocks = attention_blocks(args.channels)
        entries = {name: blocks[name] for name in args.only}
        costs = resolution_costs(entries, args.sides, args.channels, **how)
        if args.plot is not None:
            plot_resolution(costs, args.plot)
        content["rows"] = [asdict(cost) for cost in costs]
        print(resolution_markdown(costs), end="")
    else:
        speeds = [external_attention_speed(side, args.channels, **how) for side in args.sides]
        content["rows"] = speed_json(speeds)
        print(speed_markdown(speeds), end="")
        if args.head:
            ratio = content["head_over_convolutions"] = head_over_convolutions(**how)
            print(f"\nFused EAHead at 2048 x 64 x 64 over its two 3x3 convolutions: {ratio:.3f}")
    if args.json is not None:
        args.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
