"""How far context blocks carry: `context_probe.py [--seeds N] [--plot PNG]`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.context_report import main

    sys.exit(main())
