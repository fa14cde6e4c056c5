"""Convert EANet's published VOC model to the segmentor of configs/ea_r101_voc_45k.py."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

main = partial(convert, "eanet")
