"""Re-attention: softmax maps are mixed across the heads and normalised before they weigh values.

Paper: DeepViT: Towards Deeper Vision Transformer, arXiv:2103.11886, equation 3.
Follows: zhoudaquan/dvit_repo (1ccb152), `models/layers.py`, class `ReAttention`; `norm='layer'`
follows lucidrains/vit-pytorch, `deepvit.py`.

Deviations, none of which changes the published result:
- Mixing and batch norm are one matrix and one constant per head, and blocks of queries are worked
  through one after the other, so the maps of all heads are never held at once. In training this is
  so for many tokens, with the batch statistics taken from the covariance of the heads' maps.
- `reference_tokens` keeps a normalisation that was learned at one number of tokens valid at any
  other; None (the default) and an input with just that many tokens are the published computation.
- Mixing and normalisation run in float32 under autocast.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers.batch_statistics import update_running_statistics
from mmseg_ext.layers.precision import autocast_disabled, full_precision

_NORMS = ("batch", "layer")
_INITS = ("published", "identity")

# One block of queries keeps its maps in the last-level cache on a CPU: 4 MiB measured best of
# 0.5 to 16 MiB for 197 to 1025 tokens. Elsewhere the block only bounds the memory.
_BLOCK_BYTES = {"cpu": 4 * 2**20}
_BLOCK_BYTES_ELSEWHERE = 256 * 2**20
# With gradients, blocks are computed again in the backward: at 1025 tokens that measured faster
# than keeping the maps, at 197 slower.
_RECOMPUTED_TOKENS = 512


class ReAttention(nn.Module):
    """Self-attention with the maps `Norm(Theta^T softmax(Q K^T / sqrt(d)))`, (B, N, C) to the same.

    `norm='batch'` is the published code: a 1x1 convolution over the heads with a bias, then batch
    norm with one mean and variance per head. `norm='layer'` is the community's form: head mixing
    without a bias, drawn from a standard normal, then layer norm over the heads at each pair of
    tokens (that code also has no bias in `qkv`: `qkv_bias=False`).

    `transform_scale=True` multiplies the normalised maps by the inverse root of the head width.
    `init='published'` draws the mixing as the published code does (PyTorch's default for a
    convolution); `'identity'` starts with every head on its own.

    A softmax map of N tokens has the mean 1/N, so a normalisation learned at N tokens is wrong at
    any other number. With `reference_tokens` = R, an input of N tokens has its maps multiplied by
    N/R before mixing and by R/N after the normalisation: the norm sees the values it was trained
    on, and the weighted sum over N tokens keeps its size. A map in which each of R tokens is
    repeated gives then exactly the result of the R tokens. Multiplying the running mean (less the
    mixing bias) by R/N, the variance and epsilon by its square, and the output by R/N is the same.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, or an option is unknown.
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
        init: str = "published",
        reference_tokens: int | None = None,
    ):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        if norm not in _NORMS:
            raise ValueError(f"norm must be one of {', '.join(_NORMS)}, not {norm!r}")
        if init not in _INITS:
            raise ValueError(f"init must be one of {', '.join(_INITS)}, not {init!r}")
        if reference_tokens is not None and reference_tokens < 1:
            raise ValueError(f"reference_tokens must be at least 1, not {reference_tokens}")
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
        self._init_mixing(init)

    def _init_mixing(self, init: str) -> None:
        matrix = self.reatten_matrix
        if init == "identity":
            nn.init.dirac_(matrix.weight)
            if matrix.bias is not None:
                nn.init.zeros_(matrix.bias)
        elif isinstance(self.var_norm, nn.LayerNorm):
            nn.init.normal_(matrix.weight)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, reference_tokens={self.reference_tokens}"

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) to tokens (B, N, C)."""
        q, k, v = self._heads(x)
        v = v * self._gain(k)
        if self._needs_whole_maps(x.shape[1]):
            y = (self._map(q, k).to(v.dtype) @ v).transpose(1, 2)  # (B, N, H, d)
        else:
            y = self._attend_in_blocks(q, k, v)
        return self.proj_drop(self.proj(y.flatten(2)))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """The map that multiplies the values, (B, H, N, N), for tokens (B, N, C)."""
        q, k, _ = self._heads(x)
        return self._map(q, k) * self._gain(k)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind()  # each (B, H, N, d)
        return q * self.scale, k, v

    def _stretch(self, k: Tensor) -> float:
        """N/R: what the maps of N tokens are multiplied by to look like maps of R tokens."""
        return 1.0 if self.reference_tokens is None else k.shape[-2] / self.reference_tokens

    def _gain(self, k: Tensor) -> float:
        return self.map_scale / self._stretch(k)

    def _learns_statistics(self) -> bool:
        return isinstance(self.var_norm, nn.modules.batchnorm._BatchNorm) and self.var_norm.training

    def _needs_whole_maps(self, tokens: int) -> bool:
        """Dropped entries change the maps' mean; synchronised statistics are another module's."""
        if torch.compiler.is_compiling() or (self.training and self.attn_drop.p > 0):
            return True
        if torch.is_grad_enabled() and tokens < _RECOMPUTED_TOKENS:
            return True
        return self._learns_statistics() and type(self.var_norm) is not nn.BatchNorm2d

    def _map(self, q: Tensor, k: Tensor) -> Tensor:
        """Mixed and normalised maps (B, H, N, N), without the gain."""
        attn = self.attn_drop(_softmax_map(q, k))
        stretch = self._stretch(k)
        with autocast_disabled(attn):
            if self._learns_statistics():
                attn = attn if stretch == 1 else attn * stretch
                return self.var_norm(self.reatten_matrix(attn))
            return self._normalised(attn, self._affine(q, k), stretch)

    def _normalised(self, attn: Tensor, affine: tuple[Tensor, ...], stretch: float) -> Tensor:
        """Softmax maps (B, H, n, N) mixed and normalised, as `_affine` says."""
        if affine:
            return _mix_heads(attn, *affine)
        norm = self.var_norm
        matrix = self.reatten_matrix.weight.flatten(1).to(attn.dtype) * stretch  # (H, H)
        mixed = _mix_heads(attn, matrix, matrix.new_zeros(len(matrix)))
        weight, bias = norm.weight.to(attn.dtype), norm.bias.to(attn.dtype)
        normed = F.layer_norm(mixed.movedim(1, -1), norm.normalized_shape, weight, bias, norm.eps)
        return normed.movedim(-1, 1)  # (B, H, n, N)

    def _affine(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """Mixing and batch norm as a matrix (H, H) and a constant (H); () for layer norm."""
        norm, stretch = self.var_norm, self._stretch(k)
        if isinstance(norm, nn.LayerNorm):
            return ()
        dtype = full_precision(q.dtype)
        with autocast_disabled(q):
            theta = self.reatten_matrix.weight.flatten(1).to(dtype)  # (H, H)
            if norm.training:
                mean, variance = self._learn_statistics(q, k, theta * stretch)
            else:
                mean, variance = norm.running_mean.to(dtype), norm.running_var.to(dtype)
            gain = norm.weight.to(dtype) * (variance + norm.eps).rsqrt()  # (H)
            constant = norm.bias.to(dtype) + gain * (self.reatten_matrix.bias.to(dtype) - mean)
            return theta * (gain * stretch)[:, None], constant

    def _learn_statistics(self, q: Tensor, k: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (H) of the mixed maps, which also move the running statistics.

        A softmax map has the mean 1/N exactly, and the variance of a mixture follows from the
        heads' covariance, so the mixed maps are not needed.
        """
        batch, _, tokens, _ = q.shape
        count = batch * tokens * tokens
        sums = [self._again(_centred_products, q[:, :, rows], k) for rows in self._blocks(q)]
        covariance = torch.stack(sums).sum(0) / count  # (H, H)
        mean = theta.sum(1) / tokens + self.reatten_matrix.bias.to(theta.dtype)  # (H)
        variance = ((theta @ covariance) * theta).sum(1)  # (H)
        update_running_statistics(self.var_norm, mean, variance, count)
        return mean, variance

    def _attend_in_blocks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The weighted values (B, N, H, d), a block of queries at a time."""
        affine = self._affine(q, k)
        parts = [self._again(self._block, q[:, :, rows], k, v, *affine) for rows in self._blocks(q)]
        return torch.cat(parts, 1)

    def _block(self, q: Tensor, k: Tensor, v: Tensor, *affine: Tensor) -> Tensor:
        """The weighted values (B, n, H, d) of n queries."""
        attn = _softmax_map(q, k)
        with autocast_disabled(attn):
            attn = self._normalised(attn, affine, self._stretch(k))
        return (attn.to(v.dtype) @ v).transpose(1, 2)

    def _blocks(self, q: Tensor) -> list[slice]:
        batch, heads, tokens, _ = q.shape
        budget = _BLOCK_BYTES.get(q.device.type, _BLOCK_BYTES_ELSEWHERE)
        row = batch * heads * tokens * full_precision(q.dtype).itemsize
        step = max(1, budget // row)
        return [slice(start, start + step) for start in range(0, tokens, step)]

    @staticmethod
    def _again(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """`function` of the arguments, computed again in the backward instead of saved."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in arguments):
            return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
        return function(*arguments)


def _softmax_map(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T) (B, H, n, N), at least in float32."""
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1, dtype=full_precision(scores.dtype))


def _centred_products(q: Tensor, k: Tensor) -> Tensor:
    """Products of the heads' maps less their mean 1/N, summed over all entries, (H, H)."""
    centred = (_softmax_map(q, k) - 1 / k.shape[-2]).flatten(2)  # (B, H, nN)
    return (centred @ centred.transpose(1, 2)).sum(0)


def _mix_heads(attn: Tensor, matrix: Tensor, constant: Tensor) -> Tensor:
    """`matrix` applied across the heads of maps (B, H, n, N), plus `constant` per head."""
    batch, heads = attn.shape[:2]
    flat = attn.flatten(2)  # (B, H, nN)
    mixed = torch.baddbmm(
        constant.expand(batch, heads)[..., None], matrix.expand(batch, -1, -1), flat
    )
    return mixed.view_as(attn)  # (B, H, n, N)
