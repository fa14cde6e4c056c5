"""Segment an image or a folder: `image_demo.py IMAGE|FOLDER CONFIG CKPT`; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("image_demo")
