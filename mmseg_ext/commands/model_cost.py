"""Count parameters and multiply-adds of configs, measure time and memory; print a table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.commands import exit_on_error, usable_device
from mmseg_ext.commands._flags import command_parser, device_flag, read_flags


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--time", action="store_true", help="measure a forward of one crop, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="crops of the measured forward")
    device_flag(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--channels-last", action="store_true")
    return parser


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = read_flags(parser(), argv)
    import torch

    from mmseg_ext import register_all_modules
    from mmseg_ext.cost.model_cost import (
        HEADINGS,
        cells,
        count_config,
        machine,
        markdown,
        measure_config,
    )

    register_all_modules()
    device = usable_device(args.device)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    placement = {"dtype": getattr(torch, args.dtype), "memory_format": layout, "device": device}
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
        print(f"{machine(device)}; {forward}", end="\n\n")
    print(markdown(HEADINGS, [cells(cost) for cost in costs]), end="")
    return 0
