"""Train a segmentor: `python tools/train.py CONFIG`; `--help` lists mmsegmentation's flags."""

import sys

from mmseg_ext import stack_problem

if __name__ == "__main__":
    problem = stack_problem()
    if problem is not None:
        sys.exit(problem)
    from mmseg_ext.engine.launch import train

    train()
