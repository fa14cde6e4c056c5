"""Convert a published RMT classifier or segmentor to RMT or the whole network."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The files are linked in the README of https://github.com/qhfan/RMT: classifiers, and segmentors of
Semantic FPN and UPerNet.
"""

main = partial(convert, "rmt", classifier=True, segmentor_family="rmt_segmentor", where=WHERE)
