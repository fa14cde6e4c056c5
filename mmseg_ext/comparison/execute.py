"""Train and test the runs of a plan, each in processes of its own.

A run is complete when the files of its tests are there. A run that was stopped resumes, and a run
that fails costs only itself.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
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
from mmseg_ext.comparison.table import records_of, text_table, write_table
from mmseg_ext.durable.work_dir import lock_work_dir

OUTPUT = "output.txt"  # of the processes of a run
_START, _LINES = 20, 60  # seconds that a run's processes start; between lines of progress
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
    missing = [run.test_words(kind) for kind in tests if not run.has_test(kind)]
    if missing and not run.checkpoint.is_file():
        missing.insert(0, run.train_words())
    return missing


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


class _Job:
    """A run whose steps are executed, one process after the other."""

    def __init__(self, run: Run, plan: Plan, gpu: str | None):
        self.run, self.plan, self.gpu = run, plan, gpu
        self.steps = steps_of(run, plan.tests)
        self.started = time.monotonic()
        self._next()

    def _next(self) -> None:
        env = environment(self.plan.threads, self.gpu)
        self.process = start(self.steps.pop(0), self.run.folder / OUTPUT, env)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def has_ended(self) -> bool:
        """Return whether the last step has ended, or one has failed; start the next step."""
        status = self.process.poll()
        # A training that a signal has stopped ends with 0, after it has saved a checkpoint.
        if status == 0 and self.steps and self.run.checkpoint.is_file():
            self._next()
            return False
        return status is not None

    def error(self) -> str | None:
        """Return the message of a run that has ended and is not complete."""
        if not steps_of(self.run, self.plan.tests):
            return None
        if not self.process.returncode:
            return "was stopped; start the comparison again"
        output = (self.run.folder / OUTPUT).read_text(errors="replace")
        return failure(output, self.process.returncode)


def execute(plan: Plan, jobs: int = 1, gpus: Sequence[str] = ()) -> dict[Run, str]:
    """Train and test what is missing, and return the error of each run that failed.

    Args:
        jobs: processes at a time; ignored with GPUs.
        gpus: numbers of GPUs, each of which has one process at a time.
    """
    waiting = [run for run in plan.runs if steps_of(run, plan.tests)]
    expected = {}  # seconds
    for run in waiting:
        expected[run] = _START + run.length * plan.costs[run.data, run.model].seconds
    free: list[str | None] = [*gpus] if gpus else [None] * jobs
    total, places, ended = len(plan.runs), len(free), len(plan.runs) - len(waiting)
    running: list[_Job] = []
    failed: dict[Run, str] = {}
    factor = 1.0  # of the expected time: validations, tests and other programs add to it
    next_line = time.monotonic() + _LINES

    def say(text: str) -> None:
        seconds = factor * sum(expected[run] for run in waiting)
        for job in running:
            seconds += max(0, factor * expected[job.run] - job.seconds)
        left = timedelta(seconds=round(seconds / places))
        print(f"[{ended}/{total}] {text}; about {left} left", flush=True)

    try:
        while waiting or running:
            while waiting and free:
                running.append(_Job(waiting.pop(0), plan, free.pop(0)))
                say(f"{running[-1].run.name}: starts")
            time.sleep(0.1)
            for job in [job for job in running if job.has_ended()]:
                running.remove(job)
                free.append(job.gpu)
                ended += 1
                error = job.error()
                if error is None:
                    factor = job.seconds / expected[job.run]
                    say(f"{job.run.name}: complete in {timedelta(seconds=round(job.seconds))}")
                else:
                    failed[job.run] = error
                    say(f"{job.run.name}: failed: {error}")
            if time.monotonic() > next_line:
                next_line = time.monotonic() + _LINES
                say(f"running {', '.join(job.run.name for job in running)}")
    finally:
        for job in running:
            job.process.terminate()
        for job in running:  # it saves a checkpoint
            job.process.wait()
    return failed


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
        gpus: numbers of GPUs, with one training at a time on each.
        dry_run: print the command of each run that is not complete, and return nothing.

    Returns:
        The records of `mmseg_ext.comparison.table.records_of`.

    Raises:
        LaunchError: for a config that does not build, data of other classes, and a folder with the
            runs of other settings.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    with lock_work_dir(str(out), "--out"):
        plan = make_plan(
            [*map(str, configs)],
            [*map(str, data)],
            seeds,
            Path(out),
            iterations,
            minutes,
            rates,
            metrics,
            tta,
            threads_of(jobs),
            str(gpus[0]) if gpus else None,
        )
        if dry_run:
            print("\n".join(commands(plan)))
            return []
        for note in plan.notes:
            print(f"differs: {note}", flush=True)
        records = records_of(plan, execute(plan, jobs, [*map(str, gpus)]))
        files = write_table(plan, records)
    print(text_table(plan, records))
    for file in files:
        print(file)
    return records


def threads_of(jobs: int) -> int | None:
    """Return the threads of each of several processes on a CPU; None leaves them to torch."""
    if "OMP_NUM_THREADS" in os.environ:
        return int(os.environ["OMP_NUM_THREADS"])
    return None if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs)
