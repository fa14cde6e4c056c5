"""Time and memory of the attention blocks at the papers' sizes: python -m projects.attention_cost

External attention and self-attention alternate, in training (forward and backward) and inference.
Times are medians. Memory is the peak above the start, of the allocator on a GPU and of the process
on a CPU.
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.tables import compare_times, inference_step, training_step
from mmseg_ext.cost.model_cost import markdown
from projects.eagan.model import ATTENTION
from projects.eat.model import OffsetAttention

# Name, shape of the input, and the block for a kind of attention.
BLOCKS: list[tuple[str, tuple[int, ...], Callable[[str], nn.Module]]] = [
    ("SAGAN, CIFAR-10, generator", (16, 256, 16, 16), lambda kind: ATTENTION[kind](256)),
    ("SAGAN, CIFAR-10, discriminator", (16, 128, 16, 16), lambda kind: ATTENTION[kind](128)),
    ("SAGAN, Tiny-ImageNet, generator", (16, 128, 32, 32), lambda kind: ATTENTION[kind](128)),
    ("SAGAN, Tiny-ImageNet, discriminator", (16, 64, 32, 32), lambda kind: ATTENTION[kind](64)),
    ("PCT, ModelNet40", (8, 256, 256), lambda kind: OffsetAttention(256, kind)),
    ("PCT, ShapeNet-part", (8, 2048, 128), lambda kind: OffsetAttention(128, kind)),
]
HEADINGS = ["block, external / self", "input", "k parameters"]
HEADINGS += ["ms, training", "MiB", "ms, inference", "MiB"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.attention_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    rows = []
    for name, shape, build in BLOCKS:
        x = torch.randn(shape, device=args.device)
        blocks = {kind: build(kind).to(args.device) for kind in ("self", "external")}
        sizes = {k: sum(p.numel() for p in b.parameters()) / 1e3 for k, b in blocks.items()}
        cells = [f"{sizes['external']:.1f} / {sizes['self']:.1f}"]
        for step in (training_step, inference_step):
            steps = {kind: step(block, x) for kind, block in blocks.items()}
            own, external = compare_times(steps, args.rounds, args.device).values()
            cells.append(f"{external.ms:.1f} / {own.ms:.1f} ({external.ratio:.2f}x)")
            cells.append(f"{external.mib:.1f} / {own.mib:.1f}")
        rows.append([name, "x".join(map(str, shape)), *cells])
    print(markdown(HEADINGS, rows), end="")


if __name__ == "__main__":
    main()
