"""The settings of stages, measurements, and rows that survive an error.

A stage is a generator of rows. A row is a dict of column names and values; consecutive rows with
the same columns are one table.
"""

import contextlib
import gc
import importlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from mmseg_ext.comparison.timing import Result, compare_times
from mmseg_ext.engine.amp import has_bfloat16

Row = dict[str, object]


class Run(NamedTuple):
    """The device, tiny sizes or real ones, and the time at which the stage is stopped.

    `only` has words, separated by commas; variants and loops without any of them are left out.
    """

    device: str
    quick: bool
    end: float
    only: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def why_not(self, precision: str) -> str:
        """Return why rows of this precision are left out; empty if they are measured."""
        # Of a GPU this would ask CUDA, and processes that the stage forks could not use it.
        slow = not self.on_gpu and not has_bfloat16(torch.device(self.device))
        return "not on this processor" if precision == "bfloat16" and slow else ""

    def wants(self, title: Row) -> bool:
        """Return whether `only` has a word of a row's title."""
        text = " ".join(f"{key} {value}" for key, value in title.items())
        return any(word in text for word in self.only.split(","))

    def left(self) -> float:
        """Return the seconds that the stage has left."""
        return self.end - time.time()


Stage = Callable[[Run], Iterator[Row]]


def attempt(title: Mapping[str, object], function: Callable[..., Row], *arguments: object) -> Row:
    """Return `title` with the columns of `function(*arguments)`, or with its error."""
    try:
        return {**title, **function(*arguments)}
    except Exception as error:
        traceback.print_exc()
        failed = message_of(error)
    gc.collect()  # what the frames of the error held
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return {**title, "failed": failed}


def message_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def measure(run: Run, functions: Mapping[str, Callable[[], object]]) -> dict[str, Result | str]:
    """Measure functions that take turns; a function that fails gives its error.

    There are as many rounds as fit in half a second, from 3 to 20.
    """
    found: dict[str, Result | str] = {}
    working, seconds = {}, 0.0
    for name, function in functions.items():
        try:
            for _ in range(1 if run.quick else 3):
                start = time.perf_counter()
                function()
                if run.on_gpu:
                    torch.cuda.synchronize()
            seconds += time.perf_counter() - start
            working[name] = function
        except Exception as error:
            found[name] = message_of(error)
            gc.collect()
            if run.on_gpu:
                torch.cuda.empty_cache()
    rounds = 1 if run.quick else min(20, max(3, int(0.5 / max(seconds, 1e-6))))
    if working:
        found |= compare_times(working, rounds, run.device)
    return {name: found[name] for name in functions}


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after these seconds, as soon as Python runs."""

    def stop(*_) -> None:
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Run a stage and append its rows to a file; `benchmarks.gpu.runner` starts this."""
    place, file, device, end, only, *quick = sys.argv[1:]
    module, _, function = place.partition(":")
    stage: Stage = getattr(importlib.import_module(module), function)
    gc.freeze()  # else each collection before a measurement reads all modules
    with open(file, "a", buffering=1) as rows:  # lines

        def add(row: Row) -> None:
            rows.write(json.dumps(row, default=str) + "\n")

        try:
            for row in stage(Run(device, bool(quick), float(end), only)):
                add(row)
        except Exception as error:
            add({"failed": message_of(error)})
            raise


if __name__ == "__main__":
    main()
