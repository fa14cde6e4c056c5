"""Test a segmentor: `python tools/test.py CONFIG CHECKPOINT [--tta]`; `--help` lists the flags."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.engine.launch import test

    test()
