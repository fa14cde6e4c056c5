"""`python -m mmseg_ext doctor`: what works on this machine, how fast, and what does not.

One line for each check, with its figure and ok, slow, FAIL or skipped. The exit status is 1 where a
check fails and 2 for a wrong argument; slow and skipped lines leave it 0.
"""

import argparse
import contextlib
import json
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mmseg_ext.cost.devices import usable_device
from mmseg_ext.doctor.checks import checks, perform
from mmseg_ext.version import __version__

# What the checks do on purpose, or what is mmsegmentation's own.
_EXPECTED_WARNINGS = ("Default ``avg_non_ignore`` is False",)
_STYLES = {"ok": "green", "slow": "yellow", "FAIL": "bold red", "skipped": "dim"}


def build_parser() -> argparse.ArgumentParser:
    """The flags of `doctor`."""
    parser = argparse.ArgumentParser(
        prog="python -m mmseg_ext doctor", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda, cuda:N or cpu; a GPU where there is one",
    )
    parser.add_argument("--quick", action="store_true", help="a minute instead of five")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    parser.add_argument(
        "--config", nargs="+", default=[], metavar="CONFIG", help="images a second of these too"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; 1 where one fails."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        device = usable_device(args.device)
    except ValueError as error:
        parser.error(str(error))
    if device.type not in ("cpu", "cuda"):
        parser.error(f"device {args.device!r}: the doctor knows cuda, cuda:N and cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of which memory is measured
    missing = [path for path in args.config if not Path(path).is_file()]
    if missing:
        parser.error(f"--config: there is no file {', '.join(missing)}")
    with warnings.catch_warnings():
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        rows = _run(device, args)
    counts = Counter(row["status"] for row in rows)
    print(", ".join(f"{counts[status]} {status}" for status in _STYLES if counts[status]))
    if args.json is not None:
        _write(args.json, device, rows)
    return int(counts["FAIL"] > 0)


def _run(device: torch.device, args: argparse.Namespace) -> list[dict]:
    """Perform every check, shown as it ends."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "finding", "s"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    rows: list[dict] = []
    live = Live(table, console=console) if console.is_terminal else contextlib.nullcontext()
    with live:
        for check in checks(device, args.quick, args.config):
            start = time.perf_counter()
            finding = perform(check)
            seconds = time.perf_counter() - start
            rows.append(
                dict(
                    group=check.group,
                    name=check.name,
                    status=finding.status,
                    figure=finding.figure,
                    seconds=round(seconds, 2),
                )
            )
            cells = (
                f"[{_STYLES[finding.status]}]{finding.status}",
                f"{check.group}: {check.name}",
                finding.figure,
                f"{seconds:.1f}",
            )
            if console.is_terminal:
                table.add_row(*cells)
            else:
                print(f"{finding.status:<8}{cells[1]:<52}{cells[2]}  ({cells[3]} s)", flush=True)
    return rows


def _write(path: Path, device: torch.device, rows: list[dict]) -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    record = dict(
        mmseg_ext=__version__,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device=f"{device} ({name or platform.machine()})",
        checks=rows,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        sys.exit(f"mmseg_ext: {path}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main())
