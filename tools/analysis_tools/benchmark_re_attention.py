"""Re-attention in blocks of queries against the plain order: `benchmark_re_attention.py`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.re_attention_speed import main

    sys.exit(main())
