"""Re-attention: softmax maps are mixed across heads and normalized; and plain self-attention.

Paper: DeepViT: Towards Deeper Vision Transformer, arXiv:2103.11886, equation 3.
Follows: zhoudaquan/dvit_repo (1ccb152), `models/layers.py`, class `ReAttention`; `norm='layer'`
follows lucidrains/vit-pytorch, `deepvit.py`.

Deviations, which do not change the published result:
- Blocks of queries run one after the other where this was measured faster, so the maps of all heads
  never exist together (`_blocked_re_attention.py`).
- `reference_tokens` keeps a normalization that was learned with one number of tokens valid for
  other numbers. With None (the default) the computation is the published one.
- Mixing and normalization run in float32 under autocast.

`SelfAttention`, to which the paper compares, is the class `Attention` of the same file. It runs on
PyTorch's fused kernel, which does not build the attention map.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers import _blocked_re_attention as blocked
from mmseg_ext.layers.fused_attention import fused_attention
from mmseg_ext.layers.input_shapes import head_width, require_tokens
from mmseg_ext.layers.precision import autocast_disabled, full_precision


class ReAttention(nn.Module):
    """Self-attention with the maps `Norm(Theta^T softmax(Q K^T / sqrt(d)))`, on (B, N, C).

    The mean of a softmax map of N tokens is 1/N, so a normalization learned at N tokens is wrong at
    other numbers of tokens. With `reference_tokens` = R, maps of N tokens are multiplied by N/R
    before the mixing and by R/N after the normalization. The norm then sees values of the size it
    was trained on, and the weighted sum keeps its size. An input of R tokens is computed as
    published, and R tokens repeated m times each give the results of the R tokens.

    Args:
        embed_dim: C, a multiple of `num_heads`.
        norm: 'batch' is the published code: a 1x1 convolution over the heads with a bias, then a
            batch norm with one channel per head. 'layer' is the community's form: mixing without a
            bias, initialized from N(0, 1), then a layer norm over the heads at each pair of tokens.
            (The community's code also has `qkv_bias=False`.)
        transform_scale: multiply the normalized maps by the inverse root of the head width.
        reference_tokens: R, the number of tokens in the pretraining.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads` or `norm` is unknown, and in
            `forward` if the input is not (B, N, embed_dim).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        norm: str = "batch",
        transform_scale: bool = False,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        reference_tokens: int | None = None,
    ):
        super().__init__()
        self.scale = head_width(embed_dim, num_heads) ** -0.5
        if norm not in ("batch", "layer"):
            raise ValueError(f"norm must be 'batch' or 'layer', not {norm!r}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.reference_tokens = reference_tokens
        self.map_scale = self.scale if transform_scale else 1.0
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.reatten_matrix = nn.Conv2d(num_heads, num_heads, 1, bias=norm == "batch")
        self.var_norm = nn.BatchNorm2d(num_heads) if norm == "batch" else nn.LayerNorm(num_heads)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if norm == "layer":
            nn.init.normal_(self.reatten_matrix.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, C) to tokens (B, N, C); the result equals `published_order`."""
        norm, mixing = self.var_norm, self.reatten_matrix
        if isinstance(norm, _BatchNorm) and blocked.should_use(x, self.attn_drop, mixing, norm):
            # Heads before images, so maps of all images are one matrix over the heads.
            q, k, v = self._heads(x, order=(2, 3, 0, 1, 4))  # each (H, B, N, d)
            ratio = self.token_ratio(x.shape[1])
            y = blocked.attend(q, k, v * self._gain(x), mixing, norm, ratio)  # (B, N, H, d)
            return self.proj_drop(self.proj(y.flatten(2)))  # (B, N, C)
        return self.published_order(x)

    def published_order(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, C) to tokens (B, N, C) with the maps of all heads at once."""
        q, k, v = self._heads(x)
        y = self._map(q, k).to(v.dtype) @ (v * self._gain(x))  # (B, H, N, d)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """Return the map that multiplies the values, (B, H, N, N), for tokens (B, N, C)."""
        q, k, _ = self._heads(x)
        return self._map(q, k) * self._gain(x)

    def _heads(
        self, x: Tensor, order: tuple[int, ...] = (2, 0, 3, 1, 4)
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled queries, keys and values; `order` permutes (B, N, 3, H, d)."""
        require_tokens(x, self.embed_dim)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(order).contiguous().unbind()  # each (B, H, N, d) by default
        return q * self.scale, k, v

    def _map(self, q: Tensor, k: Tensor) -> Tensor:
        """Return softmax, mixing and norm of q k^T, (B, H, N, N), in float32 at least."""
        scores = q @ k.transpose(-2, -1)
        maps = self.attn_drop(scores.softmax(-1, dtype=full_precision(scores.dtype)))
        with autocast_disabled(maps):
            maps = maps.to(self.reatten_matrix.weight.dtype) * self.token_ratio(q.shape[2])
            maps = self.reatten_matrix(maps)
            if isinstance(self.var_norm, nn.LayerNorm):
                return self.var_norm(maps.movedim(1, 3)).movedim(3, 1)
            return self.var_norm(maps)

    def token_ratio(self, tokens: int) -> float:
        """Return N/R, which scales maps of N tokens to the size of maps of R tokens."""
        return 1.0 if self.reference_tokens is None else tokens / self.reference_tokens

    def _gain(self, x: Tensor) -> float:
        """Return the factor after the norm, for tokens (B, N, C)."""
        return self.map_scale / self.token_ratio(x.shape[1])


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
        self.head_width = head_width(embed_dim, num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, C) to tokens (B, N, C)."""
        heads = self._heads(x)  # (3, B, H, N, d)
        width = self.head_width
        drop = self.attn_drop if self.training else 0.0
        # CUDA's fused float32 kernels need widths that are multiples of 8. DeepViT-S and -L have
        # heads of 33 and 35. Zeros change neither the products nor the columns that are kept.
        if width % 8 and x.device.type == "cuda":
            heads = F.pad(heads, (0, -width % 8))
        y = fused_attention(*heads, dropout_p=drop, scale=width**-0.5)
        y = y[..., :width].transpose(1, 2).flatten(2)  # (B, N, C)
        return self.proj_drop(self.proj(y))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """Return the map that multiplies the values, (B, H, N, N), for tokens (B, N, C)."""
        q, k, _ = self._heads(x)  # each (B, H, N, d)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)

    def _heads(self, x: Tensor) -> Tensor:
        """Return queries, keys and values (3, B, H, N, d)."""
        require_tokens(x, self.embed_dim)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, d)
        return qkv.permute(2, 0, 3, 1, 4)
