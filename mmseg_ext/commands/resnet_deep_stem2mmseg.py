"""Convert a ResNet with a deep stem (resnet101-2a57e44d.pth) to the VOC configs' backbone."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

main = partial(convert, "resnet_deep_stem")
