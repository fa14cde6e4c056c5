"""Stages of `benchmarks.gpu` that fail, each after a row."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

from benchmarks.gpu import isolated
from benchmarks.gpu.stage import Row, Run, attempt


def fine(run: Run) -> Iterator[Row]:
    yield {"number": 1}
    yield attempt({"number": 2}, lambda: {"inverse": 1 / 0})
    yield {"number": 3}


def hangs(run: Run) -> Iterator[Row]:
    """Ignore the polite signals, with a process that does not end by itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield {"process": subprocess.Popen(["sleep", "600"]).pid}
    time.sleep(600)


def is_killed(run: Run) -> Iterator[Row]:
    yield {"number": 1}
    os.kill(os.getpid(), signal.SIGKILL)


def exits(run: Run) -> Iterator[Row]:
    yield {"number": 1}
    os._exit(3)


def fails(run: Run) -> Iterator[Row]:
    yield {"number": 1}
    raise ValueError("a | in a message")


def loses_rows(run: Run) -> Iterator[Row]:
    """Measure rows of which three fail: by an error, by a signal, and by a call without an end."""
    isolated.GRACE = 0.5

    def columns(number: int) -> Iterator[Row]:
        yield {"process": os.getpid()}
        if number == 2:
            raise ValueError("no")
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 4:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(600)
        if number == 5:
            time.sleep(600)
        yield {"done": True}

    jobs = [isolated.Job({"number": i}, 1.0, lambda i=i: columns(i)) for i in range(8)]
    yield from isolated.isolated_rows(run._replace(quick=True), jobs)
