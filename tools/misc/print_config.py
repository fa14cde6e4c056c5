"""Print the config and the run record that tools/train.py would start with; --help has flags."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.engine.print_config import main

    main()
