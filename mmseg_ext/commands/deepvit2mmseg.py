"""Convert a published DeepViT classifier to the backbone DeepViT or the whole network."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The files are linked in the README of https://github.com/zhoudaquan/dvit_repo (MIT).
"""

main = partial(convert, "deepvit", classifier=True, where=WHERE)
