"""A command prints an error that its user can correct in one line."""

import functools
import sys
from collections.abc import Callable, Sequence

from mmseg_ext.errors import LaunchError

Main = Callable[[Sequence[str] | None], int]


def one_line(main: Main) -> Main:
    """`main` with exit status 1 and one line on the error stream for what is wrong with its input.

    That is a `ValueError`, a `LaunchError` and what the system says of a file.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return main(argv)
        except (LaunchError, OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    return run
