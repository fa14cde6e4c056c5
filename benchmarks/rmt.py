"""RMT against its plain formulation: times, ratios and peak memory, and memory against width."""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from benchmarks.reference.manhattan_attention import PlainRMT, plain_manhattan_attention
from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.cost.measure import median_ratio, paired_times, peak_memory
from mmseg_ext.layers.manhattan_attention import ManhattanAttention


def inference(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            model(x)

    return run


def training(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Forward and backward of the mean square of every output."""

    def run() -> None:
        model.zero_grad(set_to_none=True)
        sum(output.float().square().mean() for output in model(x)).backward()

    return run


def compare(
    functions: dict[str, Callable[[], None]], rounds: int, device: str = "cpu"
) -> dict[str, float]:
    """Peak memory in MiB above the start, medians in seconds, and the ratio plain over ours.

    With no rounds nothing is timed. What loads at a first call is not counted.
    """
    functions["ours"]()
    row = {f"{name}_mib": peak_memory(f, device) / 2**20 for name, f in functions.items()}
    row["memory_ratio"] = row["ours_mib"] / row["plain_mib"]
    if rounds > 0:  # both have run: no further warm-up
        times = paired_times(functions, rounds=rounds, warmup=0)
        for name, seconds in times.items():
            row[f"{name}_seconds"] = statistics.median(seconds)
        row["speedup"] = median_ratio(times["plain"], times["ours"])
    return row


def compare_backbones(
    arch: str, size: tuple[int, int], batch: int, train: bool, rounds: int, device: str = "cpu"
) -> dict[str, float]:
    """One row for RMT of an arch on images of (H, W)."""
    torch.manual_seed(0)
    model = RMT(arch).to(device).train(train)
    x = torch.randn(batch, 3, *size, device=device)
    kind = training if train else inference
    return compare({"ours": kind(model, x), "plain": kind(PlainRMT(model), x)}, rounds, device)


def compare_layers(size: tuple[int, int], rounds: int, device: str = "cpu") -> dict[str, float]:
    """One row for a full-attention layer with 8 heads of 32 on a map of (H, W) positions."""
    torch.manual_seed(0)
    layer = ManhattanAttention(256, 8, 2.0, 6.0, decomposed=False).to(device).eval()
    x = torch.randn(1, *size, 256, device=device)

    def ours() -> None:
        with torch.no_grad():
            layer(x)

    def plain() -> None:
        with torch.no_grad():
            plain_manhattan_attention(layer, x)

    return compare({"ours": ours, "plain": plain}, rounds, device)


def memory_by_width(
    archs: Sequence[str], widths: Sequence[int], plain_up_to: int, device: str = "cpu"
) -> dict[str, dict[int, float]]:
    """Peak MiB of inference on images of width / 2 by width; the plain form up to a width."""
    curves: dict[str, dict[int, float]] = {}
    for arch in archs:
        torch.manual_seed(0)
        model = RMT(arch).to(device).eval()
        forms = {"ours": model, "plain": PlainRMT(model)}
        for name, form in forms.items():
            curve = curves.setdefault(f"{arch}, {name}", {})
            for width in widths:
                if name == "plain" and width > plain_up_to:
                    continue
                x = torch.randn(1, 3, width // 2, width, device=device)
                run = inference(form, x)
                if not curve:
                    run()  # loads the kernels
                curve[width] = peak_memory(run, device) / 2**20
    return curves


def plot_memory(curves: dict[str, dict[int, float]], path: str | Path) -> None:
    """Memory against the number of pixels, both logarithmic; a slope of one is drawn beside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        pixels = [w * (w // 2) for w in curve]
        style = "o-" if name.endswith("ours") else "s--"
        axes.plot(pixels, list(curve.values()), style, label=name)
    first = next(iter(curves.values()))
    widths = sorted(first)
    ends = [w * (w // 2) for w in (widths[0], widths[-1])]
    base = first[widths[-1]] / ends[-1]
    axes.plot(ends, [base * p for p in ends], ":", color="grey", label="linear in pixels")
    axes.set(xscale="log", yscale="log", xlabel="image (H x W)", ylabel="peak memory (MiB)")
    axes.set_xticks([w * (w // 2) for w in widths], [f"{w // 2}x{w}" for w in widths], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def _table(rows: dict[str, dict[str, float]]) -> str:
    lines = [
        "| case | ours, s | plain, s | plain / ours | ours, MiB | plain, MiB | ours / plain |",
        "|-|-|-|-|-|-|-|",
    ]
    for name, row in rows.items():
        times = ["", "", ""]
        if "speedup" in row:
            times = [
                f"{row['ours_seconds']:.3f}",
                f"{row['plain_seconds']:.3f}",
                f"{row['speedup']:.2f}",
            ]
        memory = [f"{row['ours_mib']:.0f}", f"{row['plain_mib']:.0f}", f"{row['memory_ratio']:.2f}"]
        lines.append(f"| {' | '.join([name, *times, *memory])} |")
    return "\n".join(lines)


def _size(text: str) -> tuple[int, int]:
    height, width = text.lower().split("x")
    return int(height), int(width)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of `benchmark_manhattan.py`; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="+", default=["tiny"], choices=list(ARCHS))
    parser.add_argument("--size", type=_size, default=(512, 512), help="HxW of the images")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--rounds", type=int, default=5, help="0: memory alone")
    parser.add_argument(
        "--layer", type=_size, metavar="HxW", help="also one full-attention layer on HxW positions"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers")
    parser.add_argument(
        "--plot", type=Path, help="instead: peak memory from 256 to 2048 pixels wide, as a picture"
    )
    parser.add_argument(
        "--plain-up-to", type=int, default=2048, help="largest width for plain in the plot"
    )
    args = parser.parse_args(argv)
    try:  # before the measurement
        usable_device(args.device)
        for path in filter(None, (args.json, args.plot)):
            path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.plot is not None:
        widths = (256, 512, 1024, 1536, 2048)
        result: dict = memory_by_width(args.arch, widths, args.plain_up_to, args.device)
        plot_memory(result, args.plot)
        for name, curve in result.items():
            print(name, ", ".join(f"{w // 2}x{w}: {mib:.0f} MiB" for w, mib in curve.items()))
    else:
        kind = "training" if args.train else "inference"
        shape = "x".join(map(str, (args.batch, 3, *args.size)))
        result = {
            f"{arch}, {kind}, {shape}": compare_backbones(
                arch, args.size, args.batch, args.train, args.rounds, args.device
            )
            for arch in args.arch
        }
        if args.layer is not None:
            name = f"one layer, {args.layer[0]}x{args.layer[1]} positions"
            result[name] = compare_layers(args.layer, args.rounds, args.device)
        print(_table(result))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
