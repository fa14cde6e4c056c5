"""Convert a ResNet with a deep stem (resnet101-2a57e44d.pth) to the VOC configs' backbone."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The file resnet101-2a57e44d.pth is the backbone that EANet and EMANet start from: its link is in
the README of https://github.com/XiaLiPKU/EMANet.
"""

main = partial(convert, "resnet_deep_stem", where=WHERE)
