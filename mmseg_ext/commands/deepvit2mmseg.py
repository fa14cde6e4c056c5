"""Convert a published DeepViT classifier to the backbone DeepViT or the whole network."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

main = partial(convert, "deepvit", classifier=True)
