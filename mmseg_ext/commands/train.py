"""Train a segmentor: mmsegmentation's flags, and `--auto-scale-lr`."""

from mmseg_ext.engine.launch import train as main

__all__ = ["main"]
