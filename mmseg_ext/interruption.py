"""Ctrl-C ends a command with one line and status 130, from the first of its imports on.

Python answers Ctrl-C with a traceback, and the imports of a command take seconds.
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

STATUS = 130  # what a shell reports of a process that Ctrl-C ended
_PACKAGE = Path(__file__).resolve().parent
_PROGRAMS = (_PACKAGE.parent / "tools", _PACKAGE.parent / "demo", _PACKAGE / ".mim")


def tell_interruption() -> None:
    """Print the line; of several processes on a machine, the first one does."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.write(2, b"mmseg_ext: interrupted\n")


def guard_imports() -> None:
    """If this process is a command of the package, Ctrl-C ends it at once. Else nothing changes."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def release_imports() -> None:
    """Ctrl-C raises KeyboardInterrupt again, as Python has it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame) -> NoReturn:
    tell_interruption()
    os._exit(STATUS)  # an exception could be swallowed by one of the modules that import now


def is_command() -> bool:
    """Whether this process is a command of the package, and not one that a command has started.

    That is `python -m mmseg_ext`, the script `mmseg-ext`, or a command's file in `tools` or `demo`.
    """
    if not sys.argv or sys.argv[0] not in sys.orig_argv:  # multiprocessing hands sys.argv on
        return False
    if sys.argv[0] == "-m":  # Python sets the path once the package is imported
        return ("-m", "mmseg_ext") in itertools.pairwise(sys.orig_argv)
    path = Path(sys.argv[0]).resolve()
    if any(path.is_relative_to(folder) for folder in _PROGRAMS):
        return (_PACKAGE / "commands" / path.name).is_file()
    return path.name in ("mmseg-ext", "mmseg-ext.exe")
