"""Re-attention in blocks of queries against the plain order: `benchmark_re_attention.py`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.analysis.re_attention_speed import main

    sys.exit(main())
