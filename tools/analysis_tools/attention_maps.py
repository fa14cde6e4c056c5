"""What a model attends to: `attention_maps.py CONFIG CKPT IMAGE [IMAGE ...]`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.attention_pictures import main

    sys.exit(main())
