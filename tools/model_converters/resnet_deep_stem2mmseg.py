"""Published ResNet with a deep stem (resnet101-2a57e44d.pth) to the backbone of the VOC configs."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("resnet_deep_stem2mmseg")
