"""Check what works on this machine; status 1 if a check fails."""

import argparse
import json
import platform
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import command, command_parser, device_flag, usable_device
from mmseg_ext.errors import format_error

if TYPE_CHECKING:
    import torch


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    device_flag(parser)
    parser.add_argument("--quick", action="store_true", help="run in a minute instead of five")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    """Run the checks; return 1 if one fails."""
    import torch

    from mmseg_ext.atomic_write import write_text
    from mmseg_ext.commands.env import describe

    device = usable_device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which the resumed run trains
    environment = dict(describe())
    for name, value in environment.items():
        print(f"{name}: {value}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # from mmsegmentation
        rows = _run(device, args.quick)
    counts = Counter(row["status"] for row in rows)
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    if args.json is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        record = {
            "environment": environment,
            "cuda": torch.version.cuda,
            "device": f"{device} ({name})",
            "checks": rows,
        }
        write_text(json.dumps(record, indent=1) + "\n", args.json)
    return int(counts["FAIL"] > 0)


def _run(device: "torch.device", quick: bool) -> list[dict]:
    """Run every check and print a line for each; an exception is a failure."""
    from mmseg_ext.doctor.checks import checks

    rows = []
    for group, name, run in checks(device, quick):
        start = time.perf_counter()
        try:
            status, figure = run()
        except Exception as error:
            status, figure = "FAIL", format_error(error)
        seconds = round(time.perf_counter() - start, 2)
        rows.append(dict(group=group, name=name, status=status, figure=figure, seconds=seconds))
        print(f"{status:<8}{f'{group}: {name}':<58}{figure}  ({seconds:.1f} s)", flush=True)
    return rows
