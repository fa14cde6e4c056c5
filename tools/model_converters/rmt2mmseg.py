"""A published RMT classifier or segmentor to the backbone RMT.

With --classifier a classification file becomes the classifier; with --segmentor a segmentation file
becomes the whole segmentor of configs/fpn_rmt_*.py or configs/upernet_rmt_*.py.
"""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("rmt", classifier=True, segmentor_family="rmt_segmentor"))
