"""The commands, one module each: its flags and its `main`, which returns the exit status.

`mmseg-ext NAME`, `python -m mmseg_ext NAME` and the file of that name under `tools/` start the same
function.
"""

import ast
import contextlib
import functools
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mmseg_ext import interruption, register, safe_loading, use_operators_in_pytorch
from mmseg_ext.environment import BASE, STACK, has_compiled_operators, stack_problem

if TYPE_CHECKING:
    import torch


def commands() -> dict[str, str]:
    """Name of every command and the first line of its file, in alphabetical order.

    The files are read and not imported, so that the list is there at once.
    """
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in files}
    return {n: ast.get_docstring(ast.parse(t)).splitlines()[0] for n, t in texts.items()}


def start(name: str) -> NoReturn:
    """Run a command with this process's command line, and end the process with its status.

    `--help` and a wrong flag are answered before the stack is imported. Without a usable mm stack
    the process ends with one line and status 1; `check_dataset`, whose status 1 says that the data
    have problems, ends with 2. `env` and `doctor` report the stack themselves, and `where` needs
    none. Training and testing also run without mmsegmentation. Whatever a command loads, it loads
    without running code. An unexpected exception becomes one line that names the file with its
    traceback. Ctrl-C becomes one line and status 130.
    """
    from mmseg_ext.commands import _flags  # which describes the commands by what is above

    with contextlib.suppress(ImportError):  # --cfg-options without mmengine, which is named below
        getattr(_flags, name)().parse_args()
    if name != "where":
        _prepare_stack(name)
    try:
        main = importlib.import_module(f"mmseg_ext.commands.{name}").main
        interruption.release_imports()
        status = main()
    except KeyboardInterrupt:
        interruption.tell_interruption()
        status = interruption.STATUS
    except Exception as error:  # what no check foresaw
        message = " ".join(str(error).split())[:300]
        sys.exit(
            f"mmseg_ext: {name} was stopped by {type(error).__name__}: {message} "
            f"(the traceback is in {_write_traceback(name)})"
        )
    sys.exit(status)


def _prepare_stack(name: str) -> None:
    """Register everything, or end the process with what is wrong with the stack."""
    register()
    usable = stack_problem(BASE) is None and find_spec("mmseg") is not None
    if usable and stack_problem() is not None and not has_compiled_operators():
        use_operators_in_pytorch()
    if name not in ("env", "doctor"):
        problem = stack_problem(BASE if _detects_or_classifies(name) else STACK)
        if problem is not None:
            print(problem, file=sys.stderr)
            sys.exit(2 if name == "check_dataset" else 1)
        safe_loading()


def exit_on_error(main: Callable) -> Callable:
    """`main` that prints what is wrong with its input in one line and returns 1.

    That is a `ValueError`, as most errors of this package are, or what the system says of a file.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return main(argv)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    return run


def usable_device(name: str) -> "torch.device":
    """The device of this name; a ValueError says why PyTorch cannot use it here."""
    import torch

    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # the first where PyTorch is built without CUDA
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def _detects_or_classifies(name: str) -> bool:
    """Training or testing, with mmdetection or mmpretrain installed and without mmsegmentation."""
    there = {module for module in ("mmseg", "mmdet", "mmpretrain") if find_spec(module)}
    return name in ("train", "test") and bool(there) and "mmseg" not in there


def _write_traceback(name: str) -> str:
    """The path of a new file with the traceback of the exception that is being handled."""
    file = f"{name}_{time.strftime('%Y%m%d_%H%M%S')}_{os.getpid()}.log"
    for folder in (Path("work_dirs/errors"), Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(traceback.format_exc(), encoding="utf-8")
            return str(folder / file)
    traceback.print_exc()
    return "the lines above"
