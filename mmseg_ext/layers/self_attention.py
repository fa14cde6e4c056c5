"""Multi-head self-attention on tokens through the fused kernel, which never forms the map.

Paper: Attention Is All You Need, arXiv:1706.03762, with the single projection to queries, keys and
values of ViT's implementations: what DeepViT compares re-attention with. Follows:
zhoudaquan/dvit_repo (1ccb152), `models/layers.py`, class `Attention`. Deviation: the fused kernel.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers.shapes import require_tokens


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V per head, then a projection; (B, N, C) to the same.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, and in `forward` for an input
            that is not (B, N, embed_dim).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) to tokens (B, N, C)."""
        drop = self.attn_drop if self.training else 0.0
        y = F.scaled_dot_product_attention(*self._heads(x), dropout_p=drop)  # (B, H, N, d)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """The map that multiplies the values, (B, H, N, N), for tokens (B, N, C)."""
        q, k, _ = self._heads(x)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        require_tokens(x, self.embed_dim)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, d)
        return qkv.permute(2, 0, 3, 1, 4).unbind()  # each (B, H, N, d)
