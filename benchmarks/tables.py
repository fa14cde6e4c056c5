"""Timing tables and the command line of the benchmarks."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmseg_ext.commands import usable_device
from mmseg_ext.cost.model_cost import machine, markdown
from mmseg_ext.cost.timing import Result, compare_times, inference_step, training_step

Results = dict[str, dict[str, Result]]
"""Results of `compare_times` by case."""


class Settings(NamedTuple):
    """Options of the command line."""

    rounds: int = 5
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


Part = Callable[[Settings], tuple[Sequence[str], Sequence[Sequence[str]]]]
"""A function that returns the headings and the rows of a table."""


STEPS = {"inference": inference_step, "training": training_step}


def time_modules(
    case: str,
    modules: Mapping[str, nn.Module],
    x: Tensor,
    settings: Settings,
    modes: Sequence[str] = tuple(STEPS),
) -> Results:
    """Compare modules on one input in inference and training; half precision uses autocast.

    Modules without parameters (fused ones) do not train.
    """
    x = x.to(settings.device)
    modules = {name: module.to(settings.device) for name, module in modules.items()}
    trainable = {n: m for n, m in modules.items() if any(p.requires_grad for p in m.parameters())}
    results = {}
    half = settings.dtype is not torch.float32
    with torch.autocast(settings.device, dtype=settings.dtype, enabled=half):
        for mode in modes:
            chosen = trainable if mode == "training" else modules
            steps = {name: STEPS[mode](module, x) for name, module in chosen.items()}
            if steps:
                results[f"{case}, {mode}"] = compare_times(steps, settings.rounds, settings.device)
    return results


def timing_table(results: Results) -> tuple[list[str], list[list[str]]]:
    rows = [
        [case, name, f"{r.ms:.1f}", f"{r.ratio:.2f}", f"{r.mib:.0f}"]
        for case, by_name in results.items()
        for name, r in by_name.items()
    ]
    return ["case", "way", "ms", "time over the first", "peak MiB"], rows


def command(description: str, parts: Mapping[str, Part], argv: Sequence[str] | None = None) -> int:
    """Run the parts named on the command line, by default all, and print their tables."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; or all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the median (5)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args(argv)
    unknown = [name for name in args.parts if name not in parts]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(parts)}")
    try:
        usable_device(args.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    settings = Settings(args.rounds, args.device, getattr(torch, args.dtype))
    print(machine(args.device))
    for name in args.parts or parts:
        print(f"\n{name}\n\n{markdown(*parts[name](settings))}", end="")
    return 0
