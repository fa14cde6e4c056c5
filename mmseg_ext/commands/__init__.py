"""The commands, one module each: `parser()` returns its flags, `main(argv)` the exit status.

`mmseg-ext NAME` and the file of that name under `tools/` start the same function.
"""

import ast
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mmseg_ext.errors import StackError

if TYPE_CHECKING:
    import torch


def commands() -> dict[str, str]:
    """Return the name of every command and the first line of its file, sorted by name.

    The files are parsed, not imported, which is faster.
    """
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in files}
    return {n: ast.get_docstring(ast.parse(t)).splitlines()[0] for n, t in texts.items()}


def start(name: str) -> NoReturn:
    """Run a command with this process's flags and exit with its status.

    Errors that the command foresees are one line. Any other exception prints Python's traceback and
    one line below it, with status 1. Ctrl-C prints one line, with status 130.
    """
    try:
        status = importlib.import_module(f"mmseg_ext.commands.{name}").main()
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes on a machine, the first one
            print("mmseg_ext: interrupted", file=sys.stderr)
        status = 130  # what a shell reports of a process that Ctrl-C ended
    except StackError as error:
        print(error, file=sys.stderr)
        status = 1
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300]
        print(f"mmseg_ext: {name} failed: {type(error).__name__}: {message}", file=sys.stderr)
        status = 1
    sys.exit(status)


def exit_on_error(main: Callable) -> Callable:
    """Decorate a `main` to print a `ValueError` or an `OSError` in one line and return 1."""

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return main(argv)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    return run


def usable_device(name: str | None = None) -> "torch.device":
    """Return the device of this name; by default the GPU if there is one, else the CPU.

    Raises:
        ValueError: if PyTorch cannot use the device.
    """
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # the first where PyTorch is built without CUDA
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
