"""Print versions, devices and registered names; exit status 1 if the mm stack is unusable."""

import argparse
import sys
from collections.abc import Sequence

from mmseg_ext.commands._flags import command_parser, prepare_stack


def parser() -> argparse.ArgumentParser:
    return command_parser(__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    parser().parse_args(argv)
    prepare_stack()
    from mmseg_ext.environment import describe, stack_problem

    rows = describe()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    problem = stack_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
    return int(problem is not None)
