"""How normalised attention maps fare at other image sizes: `token_count.py [--json FILE]`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.token_count import main

    sys.exit(main())
