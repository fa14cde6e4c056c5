"""The commands, one module for each tool, with the tool's name: its flags and its main.

`python -m mmseg_ext NAME` and the file of that name under `tools/` start the same function.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import NoReturn

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
    testing are not for segmentation alone.
    """
    if name not in ("env", "doctor"):
        status = 2 if name == "check_dataset" else 1
        require_stack(status, segmentation=name not in ("train", "test"))
    sys.exit(importlib.import_module(f"mmseg_ext.commands.{name}").main())
