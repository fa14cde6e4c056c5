"""EANet's published VOC model to the segmentor of configs/ea_r101_voc_45k.py."""

import sys

from mmseg_ext.checkpoint.convert_file import main

if __name__ == "__main__":
    sys.exit(main("eanet"))
