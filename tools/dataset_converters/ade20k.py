"""Unpack, place and verify ADEChallengeData2016; `--help` says where the archives come from."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.datasets.converters.ade20k import main

    sys.exit(main())
