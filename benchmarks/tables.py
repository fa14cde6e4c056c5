"""Tables and command line of the benchmarks."""

import argparse
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from mmseg_ext.comparison.timing import compare_times
from mmseg_ext.cost.model_cost import markdown


def machine(device: str | torch.device = "cpu") -> str:
    """Describe the device that runs measurements, in a few words."""
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{os.cpu_count()}-core {platform.machine()} CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"


def inference_step(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """Return a function that runs a module in evaluation mode, without gradients."""
    module.eval()
    return torch.no_grad()(lambda: module(x))


def training_step(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """Return a function that runs forward and backward, for the input and the parameters."""
    x, module = x.detach().requires_grad_(), module.train()
    leaves = [x, *(p for p in module.parameters() if p.requires_grad)]

    def run() -> object:
        outputs, _ = tree_flatten(module(x))
        # The gradient of a real loss takes memory; a sum's is one expanded number.
        return torch.autograd.grad(outputs, leaves, [torch.ones_like(y) for y in outputs])

    return run


def in_published_order(model: nn.Module) -> nn.Module:
    """Make the layers of a model that have a faster form compute in their published order."""
    for layer in model.modules():
        if hasattr(layer, "published_order"):
            layer.forward = layer.published_order
    return model


Part = Callable[[int], tuple[Sequence[str], Sequence[Sequence[str]]]]
"""A function of the rounds that returns the headings and the rows of a table."""

STEPS = {"inference": inference_step, "training": training_step}


class Case(NamedTuple):
    """Modules to compare on one input, in inference and training."""

    name: str
    modules: Mapping[str, nn.Module]
    x: Tensor
    modes: Sequence[str] = tuple(STEPS)


def timed(cases: Callable[..., Iterable[Case]], *arguments: object) -> Part:
    """Return a part that measures `cases(*arguments)`."""

    def part(rounds: int):
        rows = []
        for case in cases(*arguments):
            for mode in case.modes:
                steps = {name: STEPS[mode](m, case.x) for name, m in case.modules.items()}
                results = compare_times(steps, rounds)
                for name, (ms, ratio, mib) in results.items():
                    cells = [f"{ms:.1f}", f"{ratio:.2f}", f"{mib:.0f}"]
                    rows.append([f"{case.name}, {mode}", name, *cells])
        return ["case", "way", "ms", "time over the first", "peak MiB"], rows

    return part


def command(description: str, parts: Mapping[str, Part], argv: Sequence[str] | None = None) -> None:
    """Run the parts named on the command line, by default all, and print their tables."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; or all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the median (5)")
    args = parser.parse_args(argv)
    unknown = [name for name in args.parts if name not in parts]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(parts)}")
    torch.manual_seed(0)
    print(machine())
    for name in args.parts or parts:
        print(f"\n{name}\n\n{markdown(*parts[name](args.rounds))}", end="")
