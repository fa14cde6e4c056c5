"""Make Cityscapes' label maps of 19 classes; `--help` says where the archives come from."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.datasets.converters.cityscapes import main

    sys.exit(main())
