"""Convert a published EAMLP classifier to the backbone EAMLP or the whole network."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The files are linked in the folder EAMLP of https://github.com/MenghaoGuo/EANet.
"""

main = partial(convert, "eamlp", classifier=True, where=WHERE)
