"""Print versions, devices and registered names; status 1 if the mm stack is unusable."""

import argparse
import sys

from mmseg_ext.commands._flags import command, command_parser


def parser() -> argparse.ArgumentParser:
    return command_parser(__doc__)


@command(parser, stack=())
def main(args: argparse.Namespace) -> int:
    from mmseg_ext.doctor.installation import describe
    from mmseg_ext.environment import stack_problem

    rows = describe()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    if problem := stack_problem():
        print(problem, file=sys.stderr)
    return int(problem is not None)
