"""Count parameters and multiply-adds of configs, measure time and memory; print a table."""

import sys
from collections.abc import Sequence

import torch

from mmseg_ext import register_all_modules
from mmseg_ext.commands import exit_on_error, usable_device
from mmseg_ext.commands._flags import model_cost as parser
from mmseg_ext.cost.model_cost import (
    HEADINGS,
    cells,
    count_config,
    machine,
    markdown,
    measure_config,
)


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    register_all_modules()
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    placement = {"dtype": getattr(torch, args.dtype), "memory_format": layout}
    placement["device"] = usable_device(args.device)
    costs = []
    for path in args.configs:
        if not path.is_file():
            raise ValueError(f"there is no config {str(path)!r}")
        costs.append(count_config(path))
        if args.time:
            measure_config(path, costs[-1], args.rounds, args.batch, **placement)
            print(" | ".join(cells(costs[-1])), file=sys.stderr)
    if args.time:
        forward = f"{args.dtype}, {layout}, {args.batch} a forward".replace("torch.", "")
        print(f"{machine(args.device)}; {forward}", end="\n\n")
    print(markdown(HEADINGS, [cells(cost) for cost in costs]), end="")
    return 0
