"""The commands, one module for each tool, with the tool's name: its flags and its main.

`python -m mmseg_ext NAME` and the file of that name under `tools/` start the same function.
"""

import ast
import contextlib
import importlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NoReturn

from mmseg_ext import safe_loading
from mmseg_ext.environment import require_stack


def commands() -> dict[str, str]:
    """Name of every command and the first line of its file, in the order of the alphabet.

    The files are read and not imported: a list costs nothing.
    """
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in files}
    return {n: ast.get_docstring(ast.parse(t)).splitlines()[0] for n, t in texts.items()}


def start(name: str) -> NoReturn:
    """Run a command with this process's command line, and end the process with its status.

    Without a usable mm stack it ends in one line; `check_dataset`, whose status 1 says that the
    data have problems, with 2. `env` and `doctor` tell of the stack themselves. Training and
    testing are not for segmentation alone. Whatever a command loads, it loads without running code.
    An exception that nothing foresaw ends in one line, with its traceback in a file that the line
    names.
    """
    if name not in ("env", "doctor"):
        status = 2 if name == "check_dataset" else 1
        require_stack(status, segmentation=name not in ("train", "test"))
        safe_loading()
    try:
        status = importlib.import_module(f"mmseg_ext.commands.{name}").main()
    except Exception as error:  # what no check foresaw
        message = " ".join(str(error).split())[:300]
        sys.exit(
            f"mmseg_ext: {name} was stopped by {type(error).__name__}: {message} "
            f"(the traceback is in {_write_traceback(name)})"
        )
    sys.exit(status)


def _write_traceback(name: str) -> str:
    """The path of a new file with the traceback that is being handled."""
    file = f"{name}_{time.strftime('%Y%m%d_%H%M%S')}_{os.getpid()}.log"
    for folder in (Path("work_dirs/errors"), Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(traceback.format_exc(), encoding="utf-8")
            return str(folder / file)
    traceback.print_exc()
    return "the lines above"
