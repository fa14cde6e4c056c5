"""Check and measure this project on a GPU, in stages.

    python -m benchmarks.gpu --out DIR

A stage has its own time limit and its own process, so a crash or a hang costs only its remaining
rows. `DIR/gpu.json` and `DIR/gpu.md` are written after every stage. The stages that measure no time
run together, then the others one after the other. A stage is also `MODULE:FUNCTION`, a generator as
`benchmarks.gpu.stage` describes it.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Name: module, and minutes of eight. The processes of the first group run together.
TOGETHER = dict.fromkeys(("parity", "training", "several"), ("benchmarks.gpu.checks", 1.7))
TOGETHER |= {"syncs": ("benchmarks.gpu.checks", 1.7)}
ALONE = dict.fromkeys(("strips", "layers", "inference"), ("benchmarks.gpu.speed", 0.9))
ALONE = {**ALONE, "steps": ("benchmarks.gpu.speed", 3.0)}
ORDER = ("parity", "strips", "layers", "steps", "training", "inference", "several", "syncs")
ROOT = Path(__file__).parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return 2 without a usable GPU, and 1 if a stage did not end."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md")
    parser.add_argument("--stages", help=f"of {','.join(ORDER)} or MODULE:FUNCTION (all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="in total (8)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--tables", type=Path, metavar="JSON", help="print the tables of a result")
    args = parser.parse_args(argv)
    if args.tables is not None:
        print(report(json.loads(args.tables.read_text(encoding="utf-8"))), end="")
        return 0
    if args.out is None:
        parser.error("--out DIR is required")
    names = args.stages.split(",") if args.stages else [*ORDER]
    if unknown := [name for name in names if name not in ORDER and ":" not in name]:
        parser.error(f"unknown stage {unknown[0]!r}: choose from {', '.join(ORDER)}")
    # Else torch asks CUDA for GPUs, and a forked process could not use them.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    command = shlex.join(["python", "-m", "benchmarks.gpu", *(argv or sys.argv[1:])])
    args.out.mkdir(parents=True, exist_ok=True)
    return run_stages(args, names, command)


def run_stages(args: argparse.Namespace, names: Sequence[str], command: str) -> int:
    end = time.time() + 60 * args.minutes
    together = [name for name in names if args.quick or name not in ALONE]
    groups = [group for group in (together, *([n] for n in ALONE if n in names)) if group]
    groups = groups[:1] if args.quick else groups
    results: dict = {"machine": {}, "command": command, "stages": {}}
    import_stack(names)
    for key, value in run_group({"machine": describe}, args, end, results):
        results["machine"] = (value["rows"] or [{key: value["ended"]}])[0]
    machine = results["machine"]
    if args.device.startswith("cuda") and not machine.get("cuda device"):
        print(f"benchmarks.gpu: no usable GPU ({machine.get('torch')}); pass --device cpu --quick")
        return 2
    for key, value in machine.items():
        print(f"{key}: {value}", flush=True)
    while groups:
        group = groups.pop(0)
        rest = sum(max(minutes(name) for name in later) for later in groups)
        own = max(minutes(name) for name in group)
        limit = time.time() + (end - time.time()) * own / (own + rest)
        for _ in run_group({name: name for name in group}, args, limit, results):
            write(args.out, results)
    write(args.out, results)
    print("\n" + claims_text(results))
    return int(any(stage["ended"] != "complete" for stage in results["stages"].values()))


def minutes(name: str) -> float:
    return {**TOGETHER, **ALONE}.get(name, ("", 1.0))[1]


def place(name: str) -> str:
    """Return MODULE:FUNCTION of a stage."""
    return name if ":" in name else f"{ {**TOGETHER, **ALONE}[name][0] }:{name}"


def import_stack(names: Sequence[str]) -> None:
    """Import what the stages need, once for all processes; a stage reports what fails."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(place(name).partition(":")[0])


def run_group(stages: dict, args: argparse.Namespace, end: float, results: dict) -> Iterator:
    """Run stages together until `end`; yield the name and the result of each one when it ends."""
    fork = multiprocessing.get_context("fork")
    processes, begin = {}, time.time()
    with tempfile.TemporaryDirectory() as folder:
        threads = max(1, (os.cpu_count() or 1) // len(stages))
        for name, stage in stages.items():
            file = Path(folder, f"{len(processes)}.jsonl")
            file.touch()
            print(f"-- {name}: up to {end - time.time():.0f} s", flush=True)
            log = args.out / f"{name.replace(':', '.')}.log"
            words = (stage, file, log, args.device, args.quick, end, threads)
            process = fork.Process(target=work, args=words)
            process.start()
            processes[name] = process, file
        while processes:
            for name, (process, file) in list(processes.items()):
                late = time.time() > end
                process.join(0.1 if not late else 0)
                if process.is_alive() and not late:
                    continue
                del processes[name]
                ended = how_it_ended(process, late, file)
                seconds = round(time.time() - begin, 1)
                rows = [json.loads(line) for line in file.read_text().splitlines() if line]
                failure = [row.pop("stage failed") for row in rows if "stage failed" in row]
                rows = [row for row in rows if row]
                value = {"ended": (failure or [ended])[0], "seconds": seconds, "rows": rows}
                if name != "machine":
                    results["stages"][name] = value
                    print("\n" + stage_text(name, value), flush=True)
                yield name, value


def how_it_ended(process, late: bool, file: Path) -> str:
    """Kill the stage's processes, and describe its end in a few words."""
    alive = process.is_alive()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also workers that it left
    process.join()
    if alive and late:
        return "stopped at its time limit"
    if process.exitcode == 0:
        return "complete"
    code = process.exitcode
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def work(stage, file: Path, log: Path, device: str, quick: bool, end: float, threads: int) -> None:
    """Run a stage in this process, append each row to `file`, and print to `log`."""
    os.setsid()  # what the stage starts ends with it
    sys.stdout.flush()
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    with file.open("a") as rows:

        def add(row: dict) -> None:
            rows.write(json.dumps(row, default=str) + "\n")
            rows.flush()

        try:
            if not callable(stage):
                module, function = place(stage).split(":")
                stage = getattr(importlib.import_module(module), function)
            import torch

            from benchmarks.gpu.stage import Run

            torch.set_num_threads(min(threads, torch.get_num_threads()))
            for row in stage(Run(device, quick, end - 2)):  # two seconds to end by itself
                add(row)
        except BaseException as error:
            import traceback

            traceback.print_exc()
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            add({"stage failed": f"failed: {message}"})


def describe(run) -> Iterator[dict]:
    """Yield one row about the machine and the software."""
    import torch

    row: dict = {"cuda device": "", "CPU": f"{os.cpu_count()}-core {platform.machine()}"}
    if run.on_gpu and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(run.device)
        row["cuda device"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        row["GPUs"] = torch.cuda.device_count()
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            found = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
            row["driver"] = found.split()[0]
    row |= {
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "python": sys.version.split()[0],
    }
    row["cudnn"] = torch.backends.cudnn.version()
    for name in ("numpy", "mmcv", "mmengine", "mmseg", "triton", "onnx", "onnxruntime"):
        with contextlib.suppress(Exception):
            row[name] = getattr(importlib.import_module(name), "__version__", "?")
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%H"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        row["commit"] = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    yield row


def stage_text(name: str, stage: dict) -> str:
    """Return a stage's heading and tables."""
    lines = [f"## {name}\n\n{stage['ended']}, {stage['seconds']:.0f} s\n"]
    for columns, rows in itertools.groupby(stage["rows"], key=lambda row: tuple(row)):
        cells = [[str(value).replace("|", "/") for value in row.values()] for row in rows]
        table = [list(columns), [":--", *["--:"] * (len(columns) - 1)], *cells]
        lines.append("\n".join("| " + " | ".join(line) + " |" for line in table) + "\n")
    return "\n".join(lines)


def claims_text(results: dict) -> str:
    from benchmarks.gpu.claims import CLAIMS

    lines = ["## Claims of the docs", "", "| | claim | page |", "| :-- | :-- | :-- |"]
    for claim in CLAIMS:
        lines.append(f"| {claim.verdict(results)} | {claim.text} | {claim.page} |")
    return "\n".join(lines) + "\n"


def report(results: dict) -> str:
    """Return everything as Markdown: the machine, the tables of the stages, and the claims."""
    machine = [f"- {key}: {value}" for key, value in results["machine"].items()]
    parts = [f"    {results['command']}\n", "\n".join(machine) + "\n"]
    stages = results["stages"]
    names = [name for name in ORDER if name in stages] + [n for n in stages if n not in ORDER]
    parts += [stage_text(name, stages[name]) for name in names]
    return "\n".join([*parts, claims_text(results)])


def write(folder: Path, results: dict) -> None:
    """Write gpu.json, then gpu.md, each at once."""
    for name, text in (
        ("gpu.json", lambda: json.dumps(results, indent=1) + "\n"),
        ("gpu.md", lambda: report(results)),
    ):
        part = folder / f"{name}.part"
        part.write_text(text(), encoding="utf-8")
        part.replace(folder / name)


if __name__ == "__main__":
    sys.exit(main())
