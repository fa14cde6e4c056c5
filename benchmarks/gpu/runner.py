"""Check and measure this project on a GPU, in stages.

    python -m benchmarks.gpu --out DIR

A stage has its own time limit and its own process, so a crash or a hang costs only its remaining
rows. `DIR/gpu.json` and `DIR/gpu.md` are written after every stage. The stages that measure no time
run together, then the others one after the other. A stage is also `MODULE:FUNCTION`, a generator as
`benchmarks.gpu.stage` describes it.
"""

import argparse
import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.claims import CLAIMS
from benchmarks.gpu.plan import LIMITS
from mmseg_ext.atomic_write import write_text
from mmseg_ext.commands import usable_device
from mmseg_ext.commands.env import describe

# Module, and minutes of eight. The stages of `checks` run together.
STAGES = {
    "parity": ("checks", 3.0),
    "strips": ("speed", 0.9),
    "training": ("checks", 3.0),
    "inference": ("speed", 0.9),
    "several": ("checks", 3.0),
    "graph": ("checks", 3.0),
    "syncs": ("checks", 3.0),
    "variants": ("variants", 6.0),
    "loop": ("loop", 4.0),
}
# They need ten minutes of their own; `plan` has their rows.
ONLY_NAMED = ("variants", "loop")
DEFAULT = ",".join(name for name in STAGES if name not in ONLY_NAMED)
ROOT = Path(__file__).parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return 2 without a usable GPU, and 1 if a stage did not end."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description="Check and measure this project on a GPU."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json and gpu.md")
    choice = f"of {','.join(STAGES)} or MODULE:FUNCTION (all but {','.join(ONLY_NAMED)})"
    parser.add_argument("--stages", default=DEFAULT, help=choice)
    parser.add_argument("--only", default="", help="words of variants or loops: rmt,compile (all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="in total (8)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    args = parser.parse_args(argv)
    names = args.stages.split(",")
    if unknown := [name for name in names if name not in STAGES and ":" not in name]:
        parser.error(f"unknown stage {unknown[0]!r}: choose from {', '.join(STAGES)}")
    try:
        usable_device(args.device)
    except ValueError as error:
        print(f"benchmarks.gpu: {error}; pass --device cpu --quick")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = shlex.join(["python", "-m", "benchmarks.gpu", *(argv or sys.argv[1:])])
    results = {"machine": machine(), "command": command, "stages": {}}
    try:
        run_stages(args, names, results)
    except KeyboardInterrupt:
        return 130
    finally:
        write(args.out, results)
        print("\n" + claims_text(results))
    return int(any(stage["ended"] != "complete" for stage in results["stages"].values()))


def run_stages(args: argparse.Namespace, names: Sequence[str], results: dict) -> None:
    """Run the stages in groups, each with its part of the minutes that are left."""
    end = time.time() + 60 * args.minutes
    measuring = ("speed", "variants", "loop")
    alone = [n for n in names if STAGES.get(n, [""])[0] in measuring and not args.quick]
    groups = [[n for n in names if n not in alone], *([n] for n in alone)]
    for i, group in enumerate(groups):
        own, *later = (max(map(minutes, names), default=0) for names in groups[i:])
        limit = time.time() + max(3, (end - time.time()) * own / max(own + sum(later), 1))
        run_group(group, args, limit, results)


def minutes(name: str) -> float:
    return STAGES[name][1] if name in STAGES else 1.0


def run_group(names: Sequence[str], args: argparse.Namespace, end: float, results: dict) -> None:
    """Run stages together until `end`; add and print the result of each one when it ends."""
    processes: dict[str, subprocess.Popen] = {}
    begin = time.time()

    def finish(name: str, why: str) -> None:
        ended = how_it_ended(processes.pop(name), why)
        rows = [json.loads(line) for line in complete_lines(args.out / f"{name}.jsonl")]
        stage = {"ended": ended, "seconds": time.time() - begin, "rows": rows}
        results["stages"][name] = stage
        print("\n" + stage_text(name, stage), flush=True)
        write(args.out, results)

    try:
        for name in names:
            limits = f"; its rows up to {LIMITS[name]:.0f} s" if name in LIMITS else ""
            print(f"-- {name}: up to {end - begin:.0f} s{limits}", flush=True)
            processes[name] = start(name, args, end, len(names))
        while processes:
            time.sleep(0.1)
            for name, process in [*processes.items()]:
                if time.time() > end or process.poll() is not None:
                    finish(name, "at its time limit")
    finally:
        for name in [*processes]:
            finish(name, "by a signal")


def start(name: str, args: argparse.Namespace, end: float, together: int) -> subprocess.Popen:
    """Start the process of a stage, which appends rows to NAME.jsonl and prints to NAME.log."""
    place = name if ":" in name else f"benchmarks.gpu.{STAGES[name][0]}:{name}"
    rows, threads = args.out / f"{name}.jsonl", max(1, torch.get_num_threads() // together)
    rows.write_text("")
    # Else torch asks CUDA for GPUs, and processes that the stage forks could not use them.
    environment = os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    environment["OMP_NUM_THREADS"] = str(threads)
    if args.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # mmengine's Runner uses each GPU that it finds
    words = [sys.executable, "-m", "benchmarks.gpu.stage", place, rows, args.device]
    words += [str(end - 2), args.only]  # two seconds to end by itself
    words += ["--quick"] if args.quick else []
    with (args.out / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            words, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def how_it_ended(process: subprocess.Popen, why: str) -> str:
    """Kill the stage's processes, and describe its end in a few words."""
    ended = process.poll() is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also workers that it left
    code = process.wait()
    if not ended:
        return f"stopped {why}"
    if code == 0:
        return "complete"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def complete_lines(file: Path) -> list[str]:
    complete, _, _ = file.read_text().rpartition("\n")  # the last line may be cut
    return complete.splitlines()


def machine() -> dict[str, object]:
    """Describe the machine and the software."""
    found: dict[str, object] = dict(describe())
    del found["registered"]
    found["CUDA"] = torch.version.cuda
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%H"]
    with contextlib.suppress(OSError):
        found["commit"] = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return found


def stage_text(name: str, stage: dict) -> str:
    """Return a stage's heading and tables."""
    heading = f"## {name}\n\n{stage['ended']}, {stage['seconds']:.0f} s\n\n"
    return heading + stage_tables(stage["rows"])


def stage_tables(rows: Sequence[dict]) -> str:
    """Return a table for each run of rows with the same columns."""
    tables = []
    for columns, group in itertools.groupby(rows, key=lambda row: tuple(row)):
        cells = [[str(value).replace("|", "/") for value in row.values()] for row in group]
        lines = [list(columns), [":--", *["--:"] * (len(columns) - 1)], *cells]
        tables.append("\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    return "\n".join(tables)


def claims_text(results: dict) -> str:
    lines = ["## Claims of the docs", "", "| | page: claim |", "| :-- | :-- |"]
    lines += [f"| {claim.verdict(results)} | {claim.text} |" for claim in CLAIMS]
    if {"--quick", "cpu", "--device=cpu"} & {*results.get("command", "").split()}:
        lines += [
            "",
            "Of --quick or of a CPU, times, memory, waiting and mIoU prove nothing about claims.",
        ]
    return "\n".join(lines) + "\n"


def report(results: dict) -> str:
    """Return everything as Markdown: the machine, the tables of the stages, and the claims."""
    machine = [f"- {key}: {value}" for key, value in results["machine"].items()]
    parts = [f"    {results['command']}\n", "\n".join(machine) + "\n"]
    stages = results["stages"]
    names = [*(name for name in STAGES if name in stages), *(stages.keys() - STAGES.keys())]
    parts += [stage_text(name, stages[name]) for name in names]
    return "\n".join([*parts, claims_text(results)])


def write(folder: Path, results: dict) -> None:
    """Write gpu.json, then gpu.md."""
    write_text(json.dumps(results, indent=1) + "\n", folder / "gpu.json")
    write_text(report(results), folder / "gpu.md")
