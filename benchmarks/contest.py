"""What the benchmarks share: contenders that take turns, tables and the command line."""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmseg_ext.cost.cost_table import MEBI, inference_step, machine, markdown, training_step
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.cost.measure import median_ratio, paired_times, peak_memory


class Settings(NamedTuple):
    """What the command line asks for; `figures` is a folder for pictures, or None."""

    rounds: int = 5
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    figures: Path | None = None


class Entrant(NamedTuple):
    """Medians in milliseconds, peak memory in MiB above the start.

    `over_first` is the time over that of the first contender, a median over the rounds.
    """

    case: str
    name: str
    ms: float
    over_first: float
    mib: float


class Table(NamedTuple):
    headings: list[str]
    rows: list[list[str]]


def contest(
    case: str, contenders: Mapping[str, Callable[[], object]], settings: Settings
) -> list[Entrant]:
    """Time and memory of the contenders, which take turns in one process."""
    seconds = paired_times(contenders, settings.rounds, warmup=1)
    first = next(iter(seconds.values()))
    return [
        Entrant(
            case,
            name,
            1e3 * statistics.median(times),
            median_ratio(times, first),
            peak_memory(contenders[name], settings.device) / MEBI,
        )
        for name, times in seconds.items()
    ]


def module_contest(
    case: str, modules: Mapping[str, nn.Module], x: Tensor, settings: Settings
) -> list[Entrant]:
    """`contest` of modules on one input, in inference and in training; half precision by autocast.

    Modules without parameters, which are fused ones, are left out of training.
    """
    entrants = []
    x = x.to(settings.device)
    modules = {name: module.to(settings.device) for name, module in modules.items()}
    half = settings.dtype is not torch.float32
    with torch.autocast(settings.device, dtype=settings.dtype, enabled=half):
        for mode, step in (("inference", inference_step), ("training", training_step)):
            chosen = {
                name: step(module, x)
                for name, module in modules.items()
                if mode == "inference" or any(p.requires_grad for p in module.parameters())
            }
            if chosen:
                entrants += contest(f"{case}, {mode}", chosen, settings)
    return entrants


def entrants_table(entrants: Sequence[Entrant]) -> Table:
    headings = ["case", "way", "ms", "time over the first", "peak MiB"]
    rows = [
        [e.case, e.name, f"{e.ms:.1f}", f"{e.over_first:.2f}", f"{e.mib:.0f}"] for e in entrants
    ]
    return Table(headings, rows)


def command(
    description: str,
    parts: Mapping[str, Callable[[Settings], Table]],
    argv: Sequence[str] | None = None,
) -> int:
    """Run the parts named on the command line, print their tables, and write them as JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; or all")
    parser.add_argument("--rounds", type=int, default=5, help="that medians are over")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--figures", type=Path, help="draw pictures into this folder")
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
    settings = Settings(args.rounds, args.device, getattr(torch, args.dtype), args.figures)
    print(machine(args.device))
    tables = {}
    for name in args.parts or parts:
        table = parts[name](settings)
        tables[name] = table._asdict()
        print(f"\n{name}\n\n{markdown(*table)}", end="")
    if args.json is not None:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")
    return 0
