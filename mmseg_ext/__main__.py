"""`python -m mmseg_ext` lists the commands; `python -m mmseg_ext NAME ...` runs one."""

import difflib
import sys
from collections.abc import Sequence

from mmseg_ext.commands import commands, start


def main(argv: Sequence[str]) -> int:
    """The exit status; a command that runs ends the process itself."""
    known = commands()
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print("usage: python -m mmseg_ext COMMAND ...; COMMAND --help lists its flags\n")
        width = max(map(len, known))
        for command, text in known.items():
            print(f"{command:<{width}}  {text}")
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"mmseg_ext: there is no command {name!r}{hint}", file=sys.stderr)
        return 2
    sys.argv = [f"python -m mmseg_ext {name}", *argv[1:]]
    start(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
