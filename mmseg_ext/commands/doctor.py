"""Check what works on this machine, and how fast; status 1 where a check fails."""

import argparse
import json
import platform
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import exit_on_error, usable_device
from mmseg_ext.commands._flags import command_parser, device_flag, prepare_stack

if TYPE_CHECKING:
    import torch


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    device_flag(parser)
    parser.add_argument("--quick", action="store_true", help="a minute instead of five")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    return parser


STATUSES = ("ok", "slow", "FAIL", "skipped")


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; 1 where one fails. Slow and skipped ones are no failure."""
    args = parser().parse_args(argv)
    prepare_stack()
    import torch

    from mmseg_ext.atomic_write import write_text
    from mmseg_ext.version import __version__

    device = usable_device(args.device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {args.device!r}: the doctor knows cuda, cuda:N and cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of which memory is measured
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # mmsegmentation's own
        rows = _run(device, args.quick)
    counts = Counter(row["status"] for row in rows)
    print(", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]))
    if args.json is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        record = dict(
            mmseg_ext=__version__,
            torch=torch.__version__,
            cuda=torch.version.cuda,
            device=f"{device} ({name})",
            checks=rows,
        )
        write_text(json.dumps(record, indent=1) + "\n", args.json)
    return int(counts["FAIL"] > 0)


def _run(device: "torch.device", quick: bool) -> list[dict]:
    """Perform every check and print a line for each."""
    from mmseg_ext.doctor.checks import checks, perform

    rows = []
    for check in checks(device, quick):
        start = time.perf_counter()
        status, figure = perform(check)
        row = dict(group=check.group, name=check.name, status=status, figure=figure)
        row["seconds"] = round(time.perf_counter() - start, 2)
        rows.append(row)
        title = f"{check.group}: {check.name}"
        print(f"{status:<8}{title:<52}{figure}  ({row['seconds']:.1f} s)", flush=True)
    return rows
