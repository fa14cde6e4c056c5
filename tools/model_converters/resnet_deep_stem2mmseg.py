"""Published ResNet with a deep stem (resnet101-2a57e44d.pth) to the backbone of the VOC configs."""

import sys

from mmseg_ext.checkpoint.convert_file import main

if __name__ == "__main__":
    sys.exit(main("resnet_deep_stem"))
