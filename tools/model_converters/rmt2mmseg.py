"""A published RMT classifier or segmentor to the backbone RMT.

With --classifier a classification file becomes the classifier; with --segmentor a segmentation file
becomes the whole segmentor of configs/fpn_rmt_*.py or configs/upernet_rmt_*.py.
"""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("rmt2mmseg")
