"""`mmseg-ext` or `python -m mmseg_ext` lists the commands; with a command's name it runs that."""

import difflib
import sys
from collections.abc import Sequence

from mmseg_ext.commands import commands, start


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; a command that runs ends the process itself."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    known = commands()
    if name in ("-h", "--help"):
        print("usage: mmseg-ext COMMAND ...; COMMAND --help lists its flags\n")
        width = max(map(len, known))
        for command, text in known.items():
            print(f"{command:<{width}}  {text}")
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"mmseg_ext: there is no command {name!r}{hint}", file=sys.stderr)
        return 2
    sys.argv = [f"mmseg-ext {name}", *rest]
    start(name)


if __name__ == "__main__":
    sys.exit(main())
