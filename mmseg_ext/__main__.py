"""`python -m mmseg_ext`: print the environment; exit status 1 where the mm stack is not usable."""

import sys

from mmseg_ext.environment import describe, stack_problem


def main() -> int:
    rows = describe()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    problem = stack_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
    return int(problem is not None)


if __name__ == "__main__":
    sys.exit(main())
