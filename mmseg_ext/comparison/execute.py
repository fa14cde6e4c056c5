"""Train and test the runs of a plan, each in processes of its own.

A run is complete when the files of its tests are there. A run that was stopped resumes, and a run
that fails costs only itself.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mmseg_ext.comparison.plan import (
    PROGRAM,
    Plan,
    Run,
    command_line,
    environment,
    failure,
    make_plan,
)
from mmseg_ext.comparison.table import records_of, write_table
from mmseg_ext.durable.work_dir import lock_work_dir

OUTPUT = "output.txt"  # of the processes of a run
_LINES = 60  # seconds between lines of progress
_PR_SET_PDEATHSIG = 1


def commands(plan: Plan) -> list[str]:
    """Return a line for each run that is not complete, as a shell reads it."""
    lines = []
    for run in plan.runs:
        steps = [command_line(words, plan.threads) for words in steps_of(run, plan.tests)]
        if steps:
            lines.append(" && ".join(steps))
    return lines


def steps_of(run: Run, tests: Sequence[str]) -> list[list[str]]:
    """Return the arguments of the commands that a run still needs."""
    missing = [run.test_words(kind) for kind in tests if not run.images(kind).is_file()]
    if missing and not run.checkpoint.is_file():
        missing.insert(0, run.train_words())
    return missing


@dataclass
class _Job:
    """A run whose steps are being executed."""

    run: Run
    steps: list[list[str]]
    gpu: str | None
    started: float
    process: subprocess.Popen


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
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Let the kernel kill this process with its parent, so a later start finds no rival."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def execute(plan: Plan, jobs: int = 1, gpus: Sequence[str] = ()) -> dict[Run, str]:
    """Train and test what is missing, and return the error of each run that failed.

    Args:
        jobs: processes at a time; ignored with GPUs.
        gpus: numbers of GPUs, each of which has one process at a time.
    """
    waiting = [run for run in plan.runs if steps_of(run, plan.tests)]
    expected = {run: 20 + _iterations(run, plan) for run in waiting}  # seconds
    free: list[str | None] = [*gpus] if gpus else [None] * jobs
    total, places = len(plan.runs), len(free)
    running: list[_Job] = []
    failed: dict[Run, str] = {}
    factor = 1.0  # of the time that was expected
    next_line = time.monotonic() + _LINES

    def left() -> str:
        seconds = sum(expected[run] for run in waiting) * factor
        for job in running:
            seconds += max(0, expected[job.run] * factor - (time.monotonic() - job.started))
        return f"about {timedelta(seconds=round(seconds / places))} left"

    def launch(job_run: Run, steps: list[list[str]], gpu: str | None) -> subprocess.Popen:
        return start(steps.pop(0), job_run.folder / OUTPUT, environment(plan.threads, gpu))

    if len(waiting) < total:
        print(f"{total - len(waiting)} of {total} runs are complete", flush=True)
    try:
        while waiting or running:
            while waiting and free:
                run, gpu = waiting.pop(0), free.pop(0)
                steps = steps_of(run, plan.tests)
                process = launch(run, steps, gpu)
                running.append(_Job(run, steps, gpu, time.monotonic(), process))
                done = total - len(waiting) - len(running)
                print(f"[{done + 1}/{total}] {run.name}: starts, {left()}", flush=True)
            time.sleep(0.1)
            for job in list(running):
                status = job.process.poll()
                if status is None:
                    continue
                is_trained = job.run.checkpoint.is_file()
                if status == 0 and job.steps and is_trained:
                    job.process = launch(job.run, job.steps, job.gpu)
                    continue
                running.remove(job)
                free.append(job.gpu)
                seconds = time.monotonic() - job.started
                if steps_of(job.run, plan.tests):
                    output = (job.run.folder / OUTPUT).read_text(errors="replace")
                    failed[job.run] = failure(output, status) if status else "was stopped"
                    print(f"{job.run.name}: failed: {failed[job.run]}", flush=True)
                else:
                    factor = seconds / expected[job.run]
                    about = timedelta(seconds=round(seconds))
                    print(f"{job.run.name}: complete in {about}, {left()}", flush=True)
            if time.monotonic() > next_line:
                next_line = time.monotonic() + _LINES
                names = "; ".join(job.run.name for job in running)
                print(f"  {names}: running, {left()}", flush=True)
    finally:
        for job in running:
            with contextlib.suppress(OSError):
                job.process.terminate()
        for job in running:  # they save a checkpoint
            job.process.wait()
    return failed


def _iterations(run: Run, plan: Plan) -> float:
    """Return the seconds of a run's iterations."""
    number = run.checkpoint.stem.rpartition("_")[2]
    return int(number) * plan.costs[run.data, run.model].seconds


def compare(
    configs: Sequence[str | Path],
    data: Sequence[str | Path] = (),
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path = "work_dirs/compare",
    iterations: int | None = None,
    minutes: float | None = None,
    rates: Sequence[float] = (1.0,),
    metrics: Sequence[str] = ("mIoU",),
    tta: bool = False,
    jobs: int = 1,
    gpus: Sequence[int] = (),
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
        metrics: mIoU, mDice, IoU.CLASS or Dice.CLASS.
        tta: also test with test-time augmentation.
        jobs: trainings at a time on a CPU.
        gpus: numbers of GPUs, with one training at a time on each.

    Returns:
        The records of `mmseg_ext.comparison.table.records_of`.

    Raises:
        LaunchError: for a config that does not build, data of other classes, and a folder with the
            runs of other settings.
    """
    plan = make_plan(
        [*map(str, configs)],
        [*map(str, data)],
        seeds,
        Path(out),
        iterations,
        minutes,
        rates,
        tta,
        threads_of(jobs),
    )
    with lock_work_dir(str(out)):
        failed = execute(plan, jobs, [*map(str, gpus)])
        records = records_of(plan, failed, metrics)
        write_table(plan, records)
    return records


def threads_of(jobs: int) -> int | None:
    """Return the threads of each of several processes on a CPU; None leaves them to torch."""
    if "OMP_NUM_THREADS" in os.environ:
        return int(os.environ["OMP_NUM_THREADS"])
    return None if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs)
