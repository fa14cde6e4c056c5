"""Time and memory of the attention blocks at the papers' sizes: python -m projects.attention_cost

Each block is trained (forward and backward) and run, external and self-attention taking turns;
times are medians. Memory is the peak above the start: of the allocator on a GPU, of the process on
the CPU, where it is read from /proc.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mmseg_ext.cost.measure import median_ratio, paired_times, peak_memory
from projects.eagan.model import ATTENTION
from projects.eat.model import OffsetAttention

ORDER = ("external", "self")
# Name, shape of the input, and the block for a kind of attention.
BLOCKS: list[tuple[str, tuple[int, ...], Callable[[str], nn.Module]]] = [
    ("SAGAN, CIFAR-10, generator", (16, 256, 16, 16), lambda kind: ATTENTION[kind](256)),
    ("SAGAN, CIFAR-10, discriminator", (16, 128, 16, 16), lambda kind: ATTENTION[kind](128)),
    ("SAGAN, Tiny-ImageNet, generator", (16, 128, 32, 32), lambda kind: ATTENTION[kind](128)),
    ("SAGAN, Tiny-ImageNet, discriminator", (16, 64, 32, 32), lambda kind: ATTENTION[kind](64)),
    ("PCT, ModelNet40", (8, 256, 256), lambda kind: OffsetAttention(256, kind)),
    ("PCT, ShapeNet-part", (8, 2048, 128), lambda kind: OffsetAttention(128, kind)),
]


def _training(block: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        block.zero_grad()
        block(x).sum().backward()

    return step


def _inference(block: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    @torch.no_grad()
    def run() -> Tensor:
        return block(x)

    return run


def measure(shape: tuple[int, ...], build: Callable[[str], nn.Module], rounds: int, device: str):
    """For each column: the two values, external first, and external's time over self's, or None."""
    x = torch.randn(shape, device=device, requires_grad=True)
    blocks = {kind: build(kind).to(device) for kind in ORDER}
    sizes = [sum(p.numel() for p in blocks[kind].parameters()) / 1e3 for kind in ORDER]
    yield sizes, None
    for make, mode in ((_training, True), (_inference, False)):
        functions = {kind: make(blocks[kind].train(mode), x) for kind in ORDER}
        times = paired_times(functions, rounds)
        medians = [1e3 * statistics.median(times[kind]) for kind in ORDER]
        yield medians, median_ratio(times["external"], times["self"])
        yield [peak_memory(functions[kind], device) / 2**20 for kind in ORDER], None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.attention_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(argv)
    table = Table(
        "block, external / self",
        "input",
        "k parameters",
        "ms, training",
        "MiB",
        "ms, inference",
        "MiB",
    )
    for name, shape, build in BLOCKS:
        cells = []
        for (external, own), ratio in measure(shape, build, arguments.rounds, arguments.device):
            cell = f"{external:.1f} / {own:.1f}"
            cells.append(cell if ratio is None else f"{cell} ({ratio:.2f}x)")
        table.add_row(name, "x".join(map(str, shape)), *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
