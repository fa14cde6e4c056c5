"""Test a segmentor: mmsegmentation's flags."""

from mmseg_ext.engine.launch import test as main

__all__ = ["main"]
