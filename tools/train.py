"""Train a segmentor: `python tools/train.py CONFIG`; `--help` lists mmsegmentation's flags."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("train")
