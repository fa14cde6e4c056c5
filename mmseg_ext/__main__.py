"""List the commands, or run one: `mmseg-ext [COMMAND]`, or `python -m mmseg_ext [COMMAND]`."""

import difflib
import sys
from collections.abc import Sequence

from mmseg_ext import __version__
from mmseg_ext.commands import COMMANDS, start


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status; a command exits with its own."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print("usage: mmseg-ext COMMAND ...; mmseg-ext COMMAND --help lists its flags\n")
        width = max(map(len, COMMANDS))
        for command, text in COMMANDS.items():
            print(f"{command:<{width}}  {text}")
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "mmseg-ext lists the commands"
        print(f"mmseg_ext: there is no command {name!r}; {hint}", file=sys.stderr)
        return 2
    sys.argv = [f"mmseg-ext {name}", *rest]
    start(name)


if __name__ == "__main__":
    sys.exit(main())
