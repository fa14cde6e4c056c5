"""A decode head with Manhattan attention, for backbones with output stride 8.

Paper (attention): RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523.
Published code: none for this head. The design is ours, with RMT's block.
"""

from typing import Any

import torch
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext.decode_heads.ea_head import conv_module
from mmseg_ext.layers.input_shapes import channels_first, channels_last
from mmseg_ext.layers.manhattan_attention import Decay, ManhattanBlock


@MODELS.register_module()
class MaSAHead(BaseDecodeHead):
    """3x3 conv, Manhattan attention blocks, 3x3 conv of their output and the input, classifier.

    Maps one feature map (B, in_channels, H, W) to logits (B, num_classes, H, W). The design follows
    mmsegmentation's `FCNHead` with `concat_input`, with RMT's block in the middle.

    Decomposed attention costs O(HW (H + W)). A crop of 769x769 has 97x97 positions at output stride
    8; attention over the full map would need 9409^2 products per head.

    Args:
        num_heads: attention heads; `channels / num_heads` is an even integer.
        num_blocks: number of blocks.
        ffn_ratio: hidden width of the feed-forward network over `channels`.
        decay_start, decay_range, decomposed, decay: see `ManhattanAttention`.
        kwargs: arguments of `BaseDecodeHead`, such as `num_classes`.
    """

    in_channels: int  # of the joined maps

    def __init__(
        self,
        in_channels: int,
        channels: int = 512,
        *,
        num_heads: int = 8,
        num_blocks: int = 1,
        ffn_ratio: float = 3.0,
        decay_start: float = 2.0,
        decay_range: float = 4.0,
        decomposed: bool = True,
        decay: Decay | None = "logit",
        norm_cfg: dict | None = dict(type="BN"),
        **kwargs,
    ):
        super().__init__(in_channels, channels, norm_cfg=norm_cfg, **kwargs)
        self.conv_in = conv_module(self, self.in_channels, channels, 3)
        attention: dict[str, Any] = dict(decay_start=decay_start, decay_range=decay_range)
        attention |= dict(decomposed=decomposed, decay=decay)
        self.blocks = nn.ModuleList(
            ManhattanBlock(channels, num_heads, ffn_ratio, **attention) for _ in range(num_blocks)
        )
        self.conv_cat = conv_module(self, self.in_channels + channels, channels, 3)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Map features (B, in_channels, H, W), at `in_index`, to logits (B, num_classes, H, W)."""
        # (B, in_channels, H, W). mmseg's type also allows several maps.
        features: Tensor = self._transform_inputs(inputs)  # pyright: ignore[reportAssignmentType]
        x = channels_last(self.conv_in(features))  # (B, H, W, channels)
        for block in self.blocks:
            x = block(x)
        x = self.conv_cat(torch.cat((features, channels_first(x)), 1))  # (B, channels, H, W)
        return self.cls_seg(x)  # (B, num_classes, H, W)
