"""Rows measured in forked processes, so one that crashes or hangs does not cost the next ones.

Rows of a group share a process, with what they cache. After a row that failed, a new process
measures the others, because memory, streams and the CUDA context may be broken. A row has the
columns that it sent before it failed.

A forked process has the imports of this one, which must neither touch CUDA nor compute with several
threads.
"""

import collections
import faulthandler
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from benchmarks.gpu.stage import Row, Run, message_of, time_limit

FORK = multiprocessing.get_context("fork")
# Of a call that no signal interrupts, after the row's limit.
GRACE = 10.0
STACKS_AFTER = 15.0
LEAST = 10.0


class Job(NamedTuple):
    """A row: what is known before, its limit in seconds, and a function that yields columns."""

    title: Row
    limit: float
    columns: Callable[[], Iterator[Row]]


def isolated_rows(run: Run, jobs: Sequence[Job]) -> Iterator[Row]:
    """Yield the row of each job of a group."""
    waiting = collections.deque(jobs)
    while waiting:
        if run.left() < LEAST and not run.quick:
            yield {**waiting.popleft().title, "skipped": f"{run.left():.0f} s are left"}
        else:
            yield from _rows_of_process(run, waiting)


def _rows_of_process(run: Run, waiting: collections.deque[Job]) -> Iterator[Row]:
    """Measure jobs in a new process until one fails or the time is up; remove the measured."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_measure, args=(run, [*waiting], sender))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        failed = False
        while waiting and not failed and (run.left() >= LEAST or run.quick):
            job = waiting.popleft()
            columns = _receive(run, job, receiver)
            failed = "failed" in columns
            yield {**job.title, **columns}
    finally:
        process.kill()
        process.join()


def _receive(run: Run, job: Job, receiver: Connection) -> Row:
    """Return the columns of a job; an error is in the column "failed"."""
    found: Row = {}
    begin = time.time()
    end = begin + min(job.limit + GRACE, max(run.left(), 0))
    while receiver.poll(max(end - time.time(), 0)):
        try:
            columns = receiver.recv()
        except EOFError:
            return {**found, "failed": "the process ended"}
        if columns is None:
            return found
        found |= columns
        if "failed" in columns:
            return found
    return {**found, "failed": f"killed after {time.time() - begin:.0f} s"}


def _measure(run: Run, jobs: Sequence[Job], sender: Connection) -> None:
    """Send the columns of each job, then None; or an error, and end."""
    for job in jobs:
        faulthandler.dump_traceback_later(STACKS_AFTER, repeat=True, file=sys.stderr)
        try:
            with time_limit(min(job.limit, max(run.left() - 2, 1))):
                for columns in job.columns():
                    sender.send(columns)
        except Exception as error:
            traceback.print_exc()
            sender.send({"failed": message_of(error)})
            os._exit(1)
        faulthandler.cancel_dump_traceback_later()
        sender.send(None)
    os._exit(0)
