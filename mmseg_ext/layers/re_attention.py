"""Re-attention: softmax maps are mixed across the heads and normalised before they weigh values.

Paper: DeepViT: Towards Deeper Vision Transformer, arXiv:2103.11886, equation 3.
Follows: zhoudaquan/dvit_repo (1ccb152), `models/layers.py`, class `ReAttention`; `norm='layer'`
follows lucidrains/vit-pytorch, `deepvit.py`.

Deviations, none of which changes the published result:
- Where that was measured faster, blocks of queries run one after the other, so that the maps of all
  heads never exist at once (`_blocked_re_attention.py`).
- `reference_tokens` keeps a normalisation that was learned at one number of tokens valid at any
  other; None (the default) and an input with just that many tokens are the published computation.
- Mixing and normalisation run in float32 under autocast.
"""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers import _blocked_re_attention as blocked
from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.shapes import require_tokens

_NORMS = ("batch", "layer")


class ReAttention(nn.Module):
    """Self-attention with the maps `Norm(Theta^T softmax(Q K^T / sqrt(d)))`, (B, N, C) to the same.

    `norm='batch'` is the published code: a 1x1 convolution over the heads with a bias, then batch
    norm with one mean and variance per head. `norm='layer'` is the community's form: head mixing
    without a bias, drawn from a standard normal, then layer norm over the heads at each pair of
    tokens (that code also has no bias in `qkv`: `qkv_bias=False`).

    `transform_scale=True` multiplies the normalised maps by the inverse root of the head width.

    A softmax map of N tokens has the mean 1/N, so a normalisation learned at N tokens is wrong at
    any other number. With `reference_tokens` = R, an input of N tokens has its maps multiplied by
    N/R before mixing and by R/N after the normalisation: the norm sees the values it was trained
    on, and the weighted sum over N tokens keeps its size. A map in which each of R tokens is
    repeated gives then exactly the result of the R tokens. Multiplying the running mean (less the
    mixing bias) by R/N, the variance and epsilon by its square, and the output by R/N is the same.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, or an option is unknown, and in
            `forward` for an input that is not (B, N, embed_dim).
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
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        if norm not in _NORMS:
            raise ValueError(f"norm must be one of {', '.join(_NORMS)}, not {norm!r}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.reference_tokens = reference_tokens
        self.scale = (embed_dim // num_heads) ** -0.5
        self.map_scale = self.scale if transform_scale else 1.0
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.reatten_matrix = nn.Conv2d(num_heads, num_heads, 1, bias=norm == "batch")
        if norm == "batch":
            self.var_norm = nn.BatchNorm2d(num_heads)
        else:
            self.var_norm = nn.LayerNorm(num_heads)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if norm == "layer":
            nn.init.normal_(self.reatten_matrix.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) to tokens (B, N, C); the result is that of `published_order`."""
        norm, mixing = self.var_norm, self.reatten_matrix
        if isinstance(norm, _BatchNorm) and blocked.should_use(x, self.attn_drop, mixing, norm):
            q, k, v = self._heads(x)
            stretch = self.stretch(x.shape[1])
            y = blocked.attend(q, k, v * self._gain(x), mixing, norm, stretch)  # (B, N, H, d)
            return self.proj_drop(self.proj(y.flatten(2)))  # (B, N, C)
        return self.published_order(x)

    def published_order(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) to tokens (B, N, C), by the maps of all heads at once."""
        q, k, v = self._heads(x)
        y = self._map(q, k).to(v.dtype) @ (v * self._gain(x))  # (B, H, N, d)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """The map that multiplies the values, (B, H, N, N), for tokens (B, N, C)."""
        q, k, _ = self._heads(x)
        return self._map(q, k) * self._gain(x)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        require_tokens(x, self.embed_dim)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind()  # each (B, H, N, d)
        return q * self.scale, k, v

    def _map(self, q: Tensor, k: Tensor) -> Tensor:
        """Maps (B, H, N, N): softmax, mixing across the heads, norm; in float32 at least."""
        scores = q @ k.transpose(-2, -1)
        maps = self.attn_drop(scores.softmax(-1, dtype=full_precision(scores.dtype)))
        with autocast_disabled(maps):
            maps = maps.to(self.reatten_matrix.weight.dtype) * self.stretch(q.shape[2])
            maps = self.reatten_matrix(maps)
            if isinstance(self.var_norm, nn.LayerNorm):
                return self.var_norm(maps.movedim(1, 3)).movedim(3, 1)
            return self.var_norm(maps)

    def stretch(self, tokens: int) -> float:
        """N/R: what the maps of N tokens are multiplied by to look like maps of R tokens."""
        return 1.0 if self.reference_tokens is None else tokens / self.reference_tokens

    def _gain(self, x: Tensor) -> float:
        return self.map_scale / self.stretch(x.shape[1])
