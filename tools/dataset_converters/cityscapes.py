"""Make Cityscapes' label maps of 19 classes; `--help` says where the archives come from."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("cityscapes")
