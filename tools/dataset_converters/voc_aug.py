"""Make trainaug of PASCAL VOC 2012 from VOC and SBD; `--help` says where the archives come from."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.datasets.converters.voc_aug import main

    sys.exit(main())
