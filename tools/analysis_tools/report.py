"""One HTML page about one or several runs: `report.py WORK_DIR [WORK_DIR ...]`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.report import main

    sys.exit(main())
