"""Published ResNet with a deep stem (resnet101-2a57e44d.pth) to the backbone of the VOC configs."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("resnet_deep_stem"))
