"""Segment images or a video: `image_demo.py IMAGE|FOLDER|VIDEO CONFIG CKPT`; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("image_demo")
