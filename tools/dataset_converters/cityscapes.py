"""Make Cityscapes' label maps of 19 classes; `--help` says where the archives come from."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.datasets.converters.cityscapes import main

    sys.exit(main())
