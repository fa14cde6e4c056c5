"""Attention collapse of a backbone: `attention_similarity.py CONFIG [CKPT] [--images FOLDER]`."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.analysis.similarity_report import main

    sys.exit(main())
