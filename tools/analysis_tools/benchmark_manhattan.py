"""RMT against the plain formulation of Manhattan attention: `benchmark_manhattan.py`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.manhattan_speed import main

    sys.exit(main())
