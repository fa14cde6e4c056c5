"""Test a segmentor: `python tools/test.py CONFIG CHECKPOINT [--tta]`; `--help` lists the flags."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("test")
