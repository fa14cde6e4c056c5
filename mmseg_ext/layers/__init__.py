"""The attention operators as plain PyTorch: nothing in this folder imports an mm package."""

from mmseg_ext.layers.fuse import fuse_model

__all__ = ["fuse_model"]
