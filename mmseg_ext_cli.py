"""Entry point of `mmseg-ext` and of the scripts in `tools/`.

It is outside the package because importing `mmseg_ext` registers its models, which imports torch
and mmsegmentation. A command reads its flags first, so `--help` answers at once.
"""

from typing import NoReturn

registers_later = False
"""Whether `import mmseg_ext` leaves registering to the command that is being started.

Importing `mmseg_ext.commands` runs `mmseg_ext/__init__.py` first, which would register the models
and import torch and mmsegmentation: five seconds, before a flag is read. An import has no
arguments, so the package looks for this module in `sys.modules`, and the command registers after it
has read its flags. An environment variable would also reach the processes that a command starts.
"""


def start(name: str) -> NoReturn:
    """Run a command with this process's flags and exit with its status."""
    global registers_later
    registers_later = True
    from mmseg_ext import commands

    commands.start(name)


def main() -> NoReturn:
    """List the commands, or run the named one."""
    global registers_later
    registers_later = True
    from mmseg_ext import commands

    commands.main()
