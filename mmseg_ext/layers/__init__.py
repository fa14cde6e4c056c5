"""The attention operators as PyTorch layers. This folder imports only torch."""

from mmseg_ext.layers.external_attention import ExternalAttention2d
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention, ManhattanBlock
from mmseg_ext.layers.re_attention import ReAttention, SelfAttention
from mmseg_ext.layers.token_external_attention import ExternalAttention, MultiHeadExternalAttention

__all__ = [
    "ExternalAttention",
    "ExternalAttention2d",
    "LambdaLayer",
    "ManhattanAttention",
    "ManhattanBlock",
    "MultiHeadExternalAttention",
    "ReAttention",
    "SelfAttention",
]
