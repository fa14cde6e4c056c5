"""The attention operators as plain PyTorch: nothing in this folder imports an mm package."""

from mmseg_ext.layers.external_attention import ExternalAttention2d

__all__ = ["ExternalAttention2d"]
