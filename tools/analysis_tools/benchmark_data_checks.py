"""What checking the data costs; `--help` lists the comparisons."""

import sys

from mmseg_ext import register_all_modules, stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.data_check_speed import main

    register_all_modules()
    sys.exit(main())
