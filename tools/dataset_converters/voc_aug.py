"""Make trainaug of PASCAL VOC 2012 from VOC and SBD; `--help` says where the archives come from."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.datasets.converters.voc_aug import main

    sys.exit(main())
