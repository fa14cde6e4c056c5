"""Convert EANet's published VOC model to the segmentor of configs/ea_r101_voc_45k.py."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The file is linked in the README of https://github.com/MenghaoGuo/EANet; the repository
has a licence in its EAMLP folder alone.
"""

main = partial(convert, "eanet", where=WHERE)
