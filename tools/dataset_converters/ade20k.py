"""Unpack, place and verify ADEChallengeData2016; `--help` says where the archives come from."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.datasets.converters.ade20k import main

    sys.exit(main())
