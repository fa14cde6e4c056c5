"""Train and test the runs of a plan, each in separate processes.

A run is complete when the files of its tests are there. A run that was stopped resumes, and a run
that fails costs only itself, also if the disk is full.
"""

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from mmseg_ext.comparison.plan import Plan, Run, make_plan
from mmseg_ext.comparison.records import records_of
from mmseg_ext.comparison.table import text_table, write_table
from mmseg_ext.comparison.timing import Cost
from mmseg_ext.durable.work_dir import lock_work_dir
from mmseg_ext.errors import LaunchError, join_names, one_line
from mmseg_ext.reports.run_data import read_curves

PROGRAM = (sys.executable, "-m", "mmseg_ext")
OUTPUT = "output.txt"  # of the processes of a run
_START, _LINES = 20, 60  # seconds that a run's processes start; between lines of progress
_PR_SET_PDEATHSIG = 1
_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def steps_of(run: Run, tests: Sequence[str]) -> list[list[str]]:
    """Return the arguments of the commands that a run still needs."""
    missing = [run.test_words(kind) for kind in tests if not run.has_test(kind)]
    if missing and not run.checkpoint.is_file():
        missing.insert(0, run.train_words())
    return missing


def trained_iterations(run: Run) -> int:
    """Return the iterations that a run has logged."""
    return max(read_curves(run.folder, []).get("loss", {}), default=0)


def cards_of(gpus: Sequence[int]) -> list[str]:
    """Return the names of GPUs for CUDA, which a user counts among those that are visible.

    Raises:
        LaunchError: for a number that is not visible, with which a run would train on the CPU, or
            that is there twice.
    """
    if len(set(gpus)) < len(gpus):
        raise LaunchError(f"--gpus {join_names([*map(str, gpus)])}: list each one once")
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    for number in gpus:
        if not 0 <= number < count:
            hint = f"use 0 to {count - 1}" if count else "leave out --gpus to train on the CPU"
            raise LaunchError(f"--gpus {number}: PyTorch finds {count} GPUs; {hint}")
    names = visible.split(",") if visible else [*map(str, range(count))]
    return [names[number] for number in gpus]


def environment(threads: int | str | None, gpu: str | None = None) -> dict[str, str]:
    """Return the environment of a run's process: its threads, and the only GPU that it sees."""
    found = dict(os.environ)
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    if gpu is not None:
        found["CUDA_VISIBLE_DEVICES"] = gpu
    return found


def start(words: Sequence[str], output: Path, env: dict[str, str]) -> subprocess.Popen:
    """Start a command of this package, with its output at the end of a file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as file:
        return subprocess.Popen(
            [*PROGRAM, *words],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # The kernel kills the process with this one, so a later start finds no rival.
            preexec_fn=_LIBC and (lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)),
        )


def failure(output: str, status: int) -> str:
    """Return the message of a command that failed, which is the last line of its output."""
    *_, line = ["", *filter(str.strip, output.splitlines())]
    if line.startswith("mmseg_ext: "):
        return line.removeprefix("mmseg_ext: ")
    return f"ended with status {status}: {one_line(line, 200)}"


def measure_in_process(configs: Sequence[Path], env: dict[str, str]) -> list[Cost]:
    """Measure configs in another process, which builds them and trains a few iterations."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "costs.json")
        words = ["compare", *map(str, configs), "--measure", str(result)]
        process = subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True)
        if process.returncode:
            raise LaunchError(failure(process.stderr, process.returncode))
        return [Cost(*cost) for cost in json.loads(result.read_text(encoding="utf-8"))]


def measure_missing(plan: Plan, gpu: str | None = None) -> None:
    """Measure the models that have no costs yet, and write the plan.

    In a later start, the seconds of a new model follow from its ratio to the first model's.
    """
    first = plan.models[0]
    for data in plan.data:
        missing = [model for model in plan.models if (data, model) not in plan.costs]
        if not missing:
            continue
        names = [first, *(model for model in missing if model != first)]
        print(f"measuring iterations on {data}: {', '.join(names)}", flush=True)
        files = [plan.config_file(data, name) for name in names]
        found = measure_in_process(files, environment(plan.threads, gpu))
        seconds = plan.costs.get((data, first), found[0]).seconds
        for name, cost in zip(names, found, strict=True):
            plan.costs.setdefault((data, name), cost._replace(seconds=seconds * cost.ratio))
    plan.save()


class _Job:
    """A run whose steps are executed, one process after the other."""

    started: float
    gpu: str | None

    def __init__(self, run: Run, plan: Plan):
        self.run, self.plan, self.first = run, plan, trained_iterations(run)
        seconds = plan.costs[run.data, run.model].seconds
        self.expected = _START + (run.iterations - self.first) * seconds
        self.step: list[str] = []  # the arguments of `process`
        self.process: Any = None
        self.error: str | None = None  # of a run that has ended and is not complete

    def start(self, gpu: str | None) -> None:
        self.started, self.gpu = time.monotonic(), gpu

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def left(self, factor: float) -> float:
        """Return the seconds that the run still needs, at its own pace when it has logged one.

        Until then it takes the expected time, multiplied by `factor`.
        """
        total, done = factor * self.expected, trained_iterations(self.run) - self.first
        if done > 0:
            total = self.seconds * (self.run.iterations - self.first) / done
        return max(0.0, total - self.seconds)

    def has_ended(self) -> bool:
        """Start the next step if there is one; return whether the run has ended."""
        try:
            status = 0 if self.process is None else self.process.poll()
            if status is None:
                return False
            if status:
                output = (self.run.folder / OUTPUT).read_text(errors="replace")
                self.error = failure(output, status)
                return True
            steps = steps_of(self.run, self.plan.tests)
            if not steps:
                return True
            if steps[0] == self.step:  # a training that a signal has stopped ends with 0, too
                self.error = "was stopped; start the comparison again"
                return True
            self.step = steps[0]
            env = environment(self.plan.threads, self.gpu)
            self.process = start(self.step, self.run.folder / OUTPUT, env)
        except OSError as error:  # a full disk, a folder of somebody else, too many processes
            self.error = f"{error.filename or self.run.folder}: {error.strerror}"
            return True
        return False


def execute(plan: Plan, jobs: int = 1, gpus: Sequence[str] = ()) -> dict[Run, str]:
    """Train and test what is missing, and return the error of each run that failed.

    Args:
        jobs: processes at a time; ignored with GPUs.
        gpus: names of GPUs for CUDA; each has one process at a time.
    """
    waiting = [_Job(run, plan) for run in plan.runs if steps_of(run, plan.tests)]
    free: list[str | None] = [*gpus] if gpus else [None] * jobs
    total, places, ended = len(plan.runs), len(free), len(plan.runs) - len(waiting)
    running: list[_Job] = []
    failed: dict[Run, str] = {}
    factor = 1.0  # of the expected time: validations, tests and other programs add to it
    next_line = time.monotonic() + _LINES

    def say(text: str) -> None:
        # A run that takes longer than expected tells the same of those that follow.
        seconds, slower = 0.0, factor
        for job in running:
            left = job.left(factor)
            slower = max(slower, (job.seconds + left) / job.expected)
            seconds += left
        seconds += slower * sum(job.expected for job in waiting)
        about = timedelta(seconds=round(seconds / places))
        print(f"[{ended}/{total}] {text}; about {about} left", flush=True)

    try:
        while waiting or running:
            while waiting and free:
                job = waiting.pop(0)
                job.start(free.pop(0))
                running.append(job)
                say(f"{job.run.name}: starts")
            for job in [job for job in running if job.has_ended()]:
                running.remove(job)
                free.append(job.gpu)
                ended += 1
                if job.error is None:
                    factor = job.seconds / job.expected
                    say(f"{job.run.name}: complete in {timedelta(seconds=round(job.seconds))}")
                else:
                    failed[job.run] = job.error
                    say(f"{job.run.name}: failed: {job.error}")
            time.sleep(0.1)
            if time.monotonic() > next_line:
                next_line = time.monotonic() + _LINES
                say(f"running {', '.join(job.run.name for job in running)}")
    finally:
        processes = [job.process for job in running if job.process is not None]
        for process in processes:
            process.terminate()
        for process in processes:  # it saves a checkpoint
            process.wait()
    return failed


def compare(
    configs: str | Path | Sequence[str | Path],
    data: str | Path | Sequence[str | Path] = (),
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path = "work_dirs/compare",
    iterations: int | None = None,
    minutes: float | None = None,
    rates: Sequence[float] = (1.0,),
    metrics: Sequence[str] = ("mIoU",),
    tta: bool = False,
    jobs: int = 1,
    gpus: Sequence[int] = (),
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Train and test configs with several seeds, and return the table that compares them.

    Each run has a process and a folder in `out`. Complete runs are kept, and stopped ones resume.
    The table is also written to `out`, as HTML, CSV, LaTeX and JSON.

    Args:
        configs: paths or names; differences are those from the first one.
        data: folders of projects, or configs, whose images all models get; by default each config
            has its own.
        seeds: of the trainings of each config.
        out: folder of the runs and the table.
        iterations: of each training; its schedule is scaled.
        minutes: equal time of training, from iterations that are measured in turns.
        rates: factors of the learning rate; a config's best one by validation is in the table.
        metrics: mIoU, mDice or boundary (the mean F1 of boundaries), and with the name of a class
            IoU.CLASS, Dice.CLASS, boundary.CLASS or objects.CLASS (the F1 of its objects).
        tta: also test with test-time augmentation.
        jobs: trainings at a time on a CPU.
        gpus: numbers of GPUs as PyTorch counts them, with one training at a time on each.
        dry_run: print the command of each run that is not complete, and return nothing.

    Returns:
        The records of `mmseg_ext.comparison.records.records_of`.

    Raises:
        LaunchError: for a config that does not build, data of other classes, and a folder with the
            runs of other settings.
    """
    if jobs < 1:
        raise LaunchError(f"--jobs {jobs}: must be positive")
    # One path is not the sequence of its letters.
    configs = [configs] if isinstance(configs, str | Path) else configs
    data = [data] if isinstance(data, str | Path) else data
    cards = cards_of(gpus)
    out = Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    threads: Any = os.environ.get("OMP_NUM_THREADS") or None  # torch's own number
    if threads is None and jobs > 1:
        threads = max(1, (os.cpu_count() or 1) // jobs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_work_dir(str(out), "--out"))
        plan = make_plan(
            [*map(str, configs)],
            [*map(str, data)],
            seeds,
            out,
            iterations,
            minutes,
            rates,
            metrics,
            tta,
            threads,
        )
        here = os.getcwd()
        stack.callback(os.chdir, here)
        os.chdir(plan.folder)
        measure_missing(plan, cards[0] if cards else None)
        if dry_run:
            prefix = "" if plan.threads is None else f"OMP_NUM_THREADS={plan.threads} "
            for run in plan.runs:
                steps = [prefix + shlex.join([*PROGRAM, *s]) for s in steps_of(run, plan.tests)]
                if steps:  # from any folder
                    print(" && ".join([shlex.join(["cd", str(plan.folder)]), *steps]))
            return []
        for note in plan.notes:
            print(f"note: {note}", flush=True)
        if not plan.folder.samefile(here):
            print(f"note: relative paths lead from {plan.folder}, where the comparison began")
        records = records_of(plan, execute(plan, jobs, cards))
        print(text_table(plan, records), flush=True)  # first: a full disk takes no files
        for file in write_table(plan, records):
            print(file)
    return records
