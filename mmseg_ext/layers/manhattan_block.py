"""The block of RMT: position encoding, Manhattan attention and a feed-forward network.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523.
Follows: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py`, classes `RetBlock` and
`FeedForwardNetwork`. The depthwise convolution in the feed-forward network and the gain per channel
in the later stages are in this code, but not in the paper's figure.
"""

import torch
from torch import Tensor, nn

from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.shapes import require_channels_last_map


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)  # (B, C, H, W)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)  # (B, H, W, C)


class FeedForward(nn.Module):
    """Linear, GELU, plus a depthwise 3x3 convolution of the result, linear; on (B, H, W, C)."""

    def __init__(self, embed_dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.dwconv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, H, W, C) to (B, H, W, C)."""
        x = self.act(self.fc1(x))  # (B, H, W, hidden_dim)
        x = x + channels_last(self.dwconv(channels_first(x)))
        return self.fc2(x)


class ManhattanBlock(nn.Module):
    """x + CPE(x), then x + MaSA(LN(x)), then x + FFN(LN(x)); on (B, H, W, C).

    Args:
        ffn_ratio: hidden width of the feed-forward network divided by `embed_dim`.
        drop_path: a module applied last in both residual branches, for stochastic depth.
        layer_scale: initial value of a learned gain per channel in both branches; None: no gain.
        cpe: conditional position encoding, a depthwise 3x3 convolution.
        attention: further arguments of `ManhattanAttention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ffn_ratio: float,
        drop_path: nn.Module | None = None,
        layer_scale: float | None = None,
        cpe: bool = True,
        **attention,
    ):
        super().__init__()
        self.cpe = nn.Conv2d(embed_dim, embed_dim, 3, padding=1, groups=embed_dim) if cpe else None
        self.norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.attn = ManhattanAttention(embed_dim, num_heads, **attention)
        self.norm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.ffn = FeedForward(embed_dim, int(embed_dim * ffn_ratio))
        self.drop_path = nn.Identity() if drop_path is None else drop_path
        self.gamma1 = self.gamma2 = None
        if layer_scale is not None:
            gains = (nn.Parameter(torch.full((embed_dim,), layer_scale)) for _ in range(2))
            self.gamma1, self.gamma2 = gains

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, H, W, C) to (B, H, W, C); raise a ValueError for another shape."""
        require_channels_last_map(x, self.attn.embed_dim)
        if self.cpe is not None:
            x = x + channels_last(self.cpe(channels_first(x)))
        x = x + self._branch(self.attn(self.norm1(x)), self.gamma1)
        return x + self._branch(self.ffn(self.norm2(x)), self.gamma2)

    def _branch(self, x: Tensor, gamma: Tensor | None) -> Tensor:
        return self.drop_path(x if gamma is None else gamma * x)
