"""Multi-head self-attention on tokens through PyTorch's fused kernel.

Paper: Attention Is All You Need, arXiv:1706.03762, with one projection to queries, keys and values
as in ViT. DeepViT compares re-attention with this layer.
Follows: zhoudaquan/dvit_repo (1ccb152), `models/layers.py`, class `Attention`.
Deviation: the fused kernel, which does not build the attention map.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers.shapes import require_tokens


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V per head and an output projection, (B, N, C) to (B, N, C).

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, and in `forward` if the input
            is not (B, N, embed_dim).
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
        """Map tokens (B, N, C) to tokens (B, N, C)."""
        heads = self._heads(x)  # each (B, H, N, d)
        width = self.embed_dim // self.num_heads
        drop = self.attn_drop if self.training else 0.0
        # CUDA's fused float32 kernels need widths that are multiples of 8. DeepViT-S and -L have
        # heads of 33 and 35. Zeros change neither the products nor the columns that are kept.
        if width % 8 and x.device.type == "cuda":
            heads = tuple(F.pad(t, (0, -width % 8)) for t in heads)
        y = F.scaled_dot_product_attention(*heads, dropout_p=drop, scale=width**-0.5)
        y = y[..., :width].transpose(1, 2).flatten(2)  # (B, N, C)
        return self.proj_drop(self.proj(y))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """Return the map that multiplies the values, (B, H, N, N), for tokens (B, N, C)."""
        q, k, _ = self._heads(x)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        require_tokens(x, self.embed_dim)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, d)
        return qkv.permute(2, 0, 3, 1, 4).unbind()  # each (B, H, N, d)
