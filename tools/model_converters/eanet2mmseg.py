"""EANet's published VOC model to the segmentor of configs/ea_r101_voc_45k.py."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("eanet2mmseg")
