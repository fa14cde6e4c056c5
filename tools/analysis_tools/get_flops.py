"""Multiply-adds (called flops) and parameters: mmsegmentation's get_flops.py; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("get_flops")
