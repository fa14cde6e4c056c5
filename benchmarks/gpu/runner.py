"""Check and measure this project on a GPU, in stages.

    python -m benchmarks.gpu --out DIR

A stage has its own time limit and its own process, so a crash or a hang costs only its remaining
rows. `DIR/gpu.json` and `DIR/gpu.md` are written after every stage. The stages that measure no time
run together, then the others one after the other. A stage is also `MODULE:FUNCTION`, a generator as
`benchmarks.gpu.stage` describes it.
"""

import argparse
import contextlib
import gc
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
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.claims import CLAIMS

# Module, and minutes of eight. The stages of `checks` run together.
STAGES = {
    "parity": ("checks", 3.0),
    "strips": ("speed", 0.9),
    "layers": ("speed", 0.9),
    "steps": ("speed", 3.0),
    "training": ("checks", 3.0),
    "inference": ("speed", 0.9),
    "several": ("checks", 3.0),
    "syncs": ("checks", 3.0),
}
ROOT = Path(__file__).parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return 2 without a usable GPU, and 1 if a stage did not end."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description="Check and measure this project on a GPU."
    )
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md")
    parser.add_argument("--stages", help=f"of {','.join(STAGES)} or MODULE:FUNCTION (all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="in total (8)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--tables", type=Path, metavar="JSON", help="print the tables of a result")
    args = parser.parse_args(argv)
    if args.tables is not None:
        try:
            text = report(json.loads(args.tables.read_text(encoding="utf-8")))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            parser.error(f"--tables: {args.tables} is not a gpu.json ({error!r})")
        print(text, end="")
        return 0
    if args.out is None:
        parser.error("--out DIR is required")
    names = args.stages.split(",") if args.stages else [*STAGES]
    if unknown := [name for name in names if name not in STAGES and ":" not in name]:
        parser.error(f"unknown stage {unknown[0]!r}: choose from {', '.join(STAGES)}")
    # Else torch asks CUDA for GPUs, and a forked process could not use them.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    command = shlex.join(["python", "-m", "benchmarks.gpu", *(argv or sys.argv[1:])])
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.out).close()
    except OSError as error:
        parser.error(f"--out {args.out}: {error.strerror}; name a folder that can be written")
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # mmengine's Runner uses each GPU that it finds
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_stages(args, names, command)
    except KeyboardInterrupt:
        return 130


def run_stages(args: argparse.Namespace, names: Sequence[str], command: str) -> int:
    end = time.time() + 60 * args.minutes
    alone = [n for n in names if STAGES.get(n, [""])[0] == "speed" and not args.quick]
    groups = [[n for n in names if n not in alone], *([n] for n in alone)]
    results: dict = {"machine": {}, "command": command, "stages": {}}
    import_stack(names, args.device)
    for args.start in ("fork", "spawn"):  # the second imports the stack for each stage
        limit = max(end, time.time() + 60)
        ((_, found),) = run_group({"machine": describe}, args, limit, results)
        if found["rows"]:
            break
    machine = results["machine"] = (found["rows"] or [{"torch": found["ended"]}])[0]
    if args.device.startswith("cuda") and not machine.get("cuda device"):
        print(f"benchmarks.gpu: no usable GPU ({machine.get('torch')}); pass --device cpu --quick")
        return 2
    for key, value in machine.items():
        print(f"{key}: {value}", flush=True)
    try:
        for i, group in enumerate(groups):
            own, *later = (max(map(minutes, names), default=0) for names in groups[i:])
            limit = time.time() + max(3, (end - time.time()) * own / max(own + sum(later), 1))
            for _ in run_group({name: name for name in group}, args, limit, results):
                write(args.out, results)
    finally:  # also after Ctrl-C
        write(args.out, results)
        print("\n" + claims_text(results))
    return int(any(stage["ended"] != "complete" for stage in results["stages"].values()))


def minutes(name: str) -> float:
    return STAGES[name][1] if name in STAGES else 1.0


def place(name: str) -> str:
    """Return MODULE:FUNCTION of a stage."""
    return name if ":" in name else f"benchmarks.gpu.{STAGES[name][0]}:{name}"


def import_stack(names: Sequence[str], device: str) -> None:
    """Import what the stages need, once for all processes; a stage reports what fails."""
    modules = ["benchmarks.gpu.stage", *(place(name).partition(":")[0] for name in names)]
    modules += ["matplotlib.pyplot", "yapf"]
    modules += ["torch._dynamo"] if device == "cpu" else []  # it may look for GPUs
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.freeze()  # else each collection before a measurement reads all of this


def run_group(
    stages: dict, args: argparse.Namespace, end: float, results: dict
) -> Iterator[tuple[str, dict]]:
    """Run stages together until `end`; yield the name and the result of each one when it ends."""
    context = multiprocessing.get_context(args.start)
    processes, begin = {}, time.time()

    def finish(name: str, why: str) -> dict:
        process, file = processes[name]
        value = {"ended": how_it_ended(process, why), "seconds": time.time() - begin}
        del processes[name]
        complete, _, _ = file.read_text().rpartition("\n")  # the last line may be cut
        value["rows"] = [json.loads(line) for line in complete.splitlines()]
        if value["rows"] and "stage failed" in value["rows"][-1]:
            value["ended"] = f"failed: {value['rows'].pop()['stage failed']}"
        if name != "machine":
            results["stages"][name] = value
            print("\n" + stage_text(name, value), flush=True)
        return value

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(lambda: [finish(name, "by a signal") for name in [*processes]])
        threads = max(1, (os.cpu_count() or 1) // max(1, len(stages)))
        for name, stage in stages.items():
            file = Path(folder, f"{len(processes)}.jsonl")
            file.touch()
            if name != "machine":
                print(f"-- {name}: up to {end - time.time():.0f} s", flush=True)
            log = args.out / f"{name.replace(':', '.')}.log"
            words = (stage, file, log, args.device, args.quick, end, threads)
            process: Any = context.Process(target=work, args=words)
            process.start()
            processes[name] = process, file
        while processes:
            for name, (process, _) in list(processes.items()):
                late = time.time() > end
                process.join(0.1 if not late else 0)
                if late or not process.is_alive():
                    yield name, finish(name, "at its time limit")


def how_it_ended(process: Any, why: str) -> str:
    """Kill the stage's processes, and describe its end in a few words."""
    alive = process.is_alive()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also workers that it left
    process.kill()  # if it is not yet in its own session
    process.join()
    if alive:
        return f"stopped {why}"
    if process.exitcode == 0:
        return "complete"
    code = process.exitcode
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def work(stage, file: Path, log: Path, device: str, quick: bool, end: float, threads: int) -> None:
    """Run a stage in this process, append each row to `file`, and print to `log`."""
    os.setsid()  # what the stage starts ends with it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
            traceback.print_exc()
            add({"stage failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]})


def describe(run) -> Iterator[dict]:
    """Yield one row about the machine and the software."""
    import torch

    row: dict = {"cuda device": "", "CPU": f"{os.cpu_count()}-core {platform.machine()}"}
    if run.on_gpu and torch.cuda.is_available():
        torch.zeros(1, device=run.device)  # raises in a forked process if the parent used CUDA
        properties = torch.cuda.get_device_properties(run.device)
        row["cuda device"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        row["GPUs"] = torch.cuda.device_count()
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            found = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
            row["driver"] = found.split()[0]
    row |= {"CUDA": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    row["python"] = platform.python_version()
    for name in ("torch", "numpy", "mmcv", "mmengine", "mmseg", "triton", "onnx", "onnxruntime"):
        with contextlib.suppress(Exception):
            row[name] = getattr(importlib.import_module(name), "__version__", "?")
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%H"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        row["commit"] = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    yield row


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
    from mmseg_ext.atomic_write import write_text  # imports the stack, which asks for GPUs

    write_text(json.dumps(results, indent=1) + "\n", folder / "gpu.json")
    write_text(report(results), folder / "gpu.md")
