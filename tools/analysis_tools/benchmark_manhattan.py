"""RMT against the plain formulation of Manhattan attention: `benchmark_manhattan.py`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.analysis.manhattan_speed import main

    sys.exit(main())
