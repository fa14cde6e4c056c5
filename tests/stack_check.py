"""Check in about a minute that everything works with the installed packages.

    python tests/stack_check.py

Trains twenty iterations, kills the same training half-way and resumes it to the same bits, tests
with one view and with several, exports, and segments an image. No test runner is needed. Exit
status 1 if anything fails.
"""

import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.training_step import SEGMENTORS, deterministic_step  # noqa: E402
from mmseg_ext.commands import prepare_stack  # noqa: E402
from mmseg_ext.commands.env import describe  # noqa: E402
from tests.engine import runs  # noqa: E402
from tests.engine.states import RANDOM, assert_same_runs  # noqa: E402

TWENTY = """
train_cfg = dict(type="IterBasedTrainLoop", max_iters=20, val_interval=20)
param_scheduler[0]["end"] = 20
default_hooks["checkpoint"] = dict(interval=5, max_keep_ckpts=-1)
"""
KILLED = 'custom_hooks.append(dict(type="SignalAt", iteration=13, number=9))\n'


def run(name: str, *words: str | Path, killed: bool = False) -> None:
    """A command in a process of its own."""
    done = runs.run(sys.executable, "-m", "mmseg_ext", name, *words)
    assert (done.returncode != 0) == killed, f"status {done.returncode}: {done.stderr[-1500:]}"


def models() -> None:
    """Run a training step of each backbone and head."""
    for name in SEGMENTORS:
        deterministic_step(name, torch.device("cpu"))


def steps(folder: Path) -> list[tuple[str, Callable[[], None]]]:
    whole = runs.write_config(folder, RANDOM + TWENTY, "whole.py")
    cut = runs.write_config(folder, RANDOM + TWENTY + KILLED, "cut.py")
    one, two, weights = folder / "one", folder / "two", folder / "one" / "iter_20.pth"
    image = folder / "data" / "images" / "0.png"
    found = [
        ("backbones and heads", models),
        ("train 20 iterations", partial(run, "train", whole, "--work-dir", one)),
        ("be killed at the 13th", partial(run, "train", cut, "--work-dir", two, killed=True)),
        ("resume", partial(run, "train", whole, "--work-dir", two, "--resume")),
        ("the same bits", lambda: assert_same_runs(two, one, 20)),
        ("test", partial(run, "test", whole, weights, "--work-dir", one)),
        ("test --tta", partial(run, "test", whole, weights, "--work-dir", one, "--tta")),
        ("image_demo", partial(run, "image_demo", image, whole, weights, "--out", folder / "out")),
    ]
    # torch before 2.6 cannot export.
    if find_spec("onnxscript") and hasattr(getattr(torch.export, "Dim", None), "DYNAMIC"):
        words = ("export", whole, weights, "--shape", "64", "--out", folder / "model.onnx")
        found.append(("export", partial(run, *words)))
    return found


def main() -> int:
    prepare_stack()  # as every command does; the rows below are about its result
    for name, value in describe()[:9]:
        print(f"{name:<12} {value}")
    print()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, step in steps(Path(folder)):
            start = time.monotonic()
            try:
                step()
                outcome = "ok"
            except Exception:  # each step is reported, the next ones run all the same
                outcome, failed = f"FAILED\n{traceback.format_exc()}", failed + 1
            print(f"{name:<24} {time.monotonic() - start:5.1f} s  {outcome}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
