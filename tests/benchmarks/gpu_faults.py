"""Stages of `benchmarks.gpu` that fail, each after a row."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

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
