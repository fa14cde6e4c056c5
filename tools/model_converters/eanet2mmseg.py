"""EANet's published VOC model to the segmentor of configs/ea_r101_voc_45k.py."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("eanet"))
