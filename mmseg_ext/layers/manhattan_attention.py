"""Manhattan attention: self-attention whose weights decay with the Manhattan distance.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523 (called MaSA there).
Follows: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py`, classes
`RetNetRelPos2d`, `VisionRetentionChunk` and `VisionRetentionAll`.

Deviations, none of which changes the published result:
- No mask of heads x positions x positions: attention runs in slices of the queries, with the bias
  formed from two one-dimensional decays, and a slice is computed again in the backward.
- Decays and rotary phases are computed in float64, cached per size, and never in the state dict.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers._manhattan_tables import (
    axis_decay,
    bias_of,
    log_decays,
    query_slices,
    rotary_phase,
)
from mmseg_ext.layers.shapes import require_channels_last_map

__all__ = ["ManhattanAttention", "attend", "log_decays"]

_DECAYS = ("logit", "product", None)

# Axes of (B, H, W, n, d) along which attention runs; None is all positions.
_ALONG_H, _ALONG_W = 1, 2


class ManhattanAttention(nn.Module):
    """Self-attention over a map with one decay per head, (B, H, W, C) to the same.

    Head i weighs a position at Manhattan distance m by gamma_i^m, gamma_i = 1 - 2^(-a - r i / n)
    for `decay_start` a, `decay_range` r and n heads. `decay='logit'`, the published code, adds
    log(gamma) m before the softmax, so that the weights sum to one. `decay='product'` is the
    paper's printed equation (softmax(Q K^T) * D) V: the weights sum to less than one; renormalised
    they are those of 'logit'. `decay=None` is plain attention.

    `decomposed=True` attends along W and then, with the same queries and keys, along H: equation
    (Attn_H (Attn_W V)), O(HW (H + W)) instead of O((HW)^2). `lce` adds a depthwise 5x5 convolution
    of the values before the output projection (local context enhancement).

    `rotary` turns queries and keys by a phase of the raster index h W + w, as the published code
    does; the paper's equations have none. Along H the phase between two rows is then W theta: the
    function of a trained model depends on the width of the map.

    Under autocast the phases are float32, and so are the decays and the softmax on a CPU.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, the head width is odd while
            `rotary`, `decay` is unknown, or a decay would not lie between 0 and 1.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        decay_start: float = 2.0,
        decay_range: float = 4.0,
        decomposed: bool = True,
        decay: str | None = "logit",
        lce: bool = True,
        rotary: bool = True,
    ):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}")
        if rotary and embed_dim // num_heads % 2:
            raise ValueError(
                f"embed_dim={embed_dim} with num_heads={num_heads} gives heads of odd width "
                f"{embed_dim // num_heads}; rotary phases turn pairs of channels"
            )
        if decay not in _DECAYS:
            raise ValueError(f"decay must be one of {_DECAYS}, not {decay!r}")
        if decay_start <= 0 or decay_range < 0:
            raise ValueError(
                f"decay_start={decay_start} must be positive and decay_range={decay_range} not "
                "negative: a decay lies between 0 and 1"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.decay_start = decay_start
        self.decay_range = decay_range
        self.decomposed = decomposed
        self.decay = decay
        self.rotary = rotary
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.lce = nn.Conv2d(embed_dim, embed_dim, 5, padding=2, groups=embed_dim) if lce else None
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, "
            f"decay_start={self.decay_start}, decay_range={self.decay_range}, "
            f"decomposed={self.decomposed}, decay={self.decay!r}, rotary={self.rotary}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, W, C) to the same.

        Raises:
            ValueError: for another shape.
        """
        q, k = self._queries_and_keys(x)  # (B, H, W, n, d)
        value = self.v_proj(x)
        v = value.unflatten(-1, (self.num_heads, -1))  # (B, H, W, n, d)
        height, width = x.shape[1:3]
        if self.decomposed:
            v = self._attend(q, k, v, _ALONG_W, width)
            v = self._attend(q, k, v, _ALONG_H, height)
        else:
            v = self._attend(q, k, v, None, height, width)
        out = v.flatten(-2)  # (B, H, W, C)
        if self.lce is not None:
            local = self.lce(value.permute(0, 3, 1, 2))  # (B, C, H, W)
            out = out + local.permute(0, 2, 3, 1)  # (B, H, W, C)
        return self.out_proj(out)

    def _queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer compares, each (B, H, W, n, d), phases applied."""
        require_channels_last_map(x, self.embed_dim)
        q, k = (p(x).unflatten(-1, (self.num_heads, -1)) for p in (self.q_proj, self.k_proj))
        if self.rotary:
            phase = rotary_phase(q, *q.shape[1:3], q.shape[-1])
            q, k = _rotate(q, phase), _rotate(k, phase)
        return q, k

    def attention_map(self, x: Tensor, position: tuple[int, int] | None = None) -> Tensor:
        """The weights of the values for x (B, H, W, C): (B, n, N, N) of N = H W positions.

        Positions are in raster order, queries before keys. With `position` (row, column) there is
        this query alone, (B, n, 1, N). In the decomposed form a weight is the product of two:
        along the column of the query, then along the row of the key.
        """
        q, k = (t.permute(0, 3, 1, 2, 4) for t in self._queries_and_keys(x))  # (B, n, H, W, d)
        q = q * q.shape[-1] ** -0.5
        row, column = (slice(i, i + 1) for i in position) if position else [slice(None)] * 2
        down, across = (
            (p[:, None] - p).abs() for p in (torch.arange(s, device=x.device) for s in x.shape[1:3])
        )  # (H, H), (W, W)
        if self.decomposed:
            queries, keys = q[:, :, row].transpose(2, 3), k.permute(0, 1, 3, 4, 2)
            along_h = self._weights(queries[:, :, column] @ keys[:, :, column], down[row])
            along_w = self._weights(q[:, :, :, column] @ k.transpose(3, 4), across[column])
            # (B, n, W, H, H') and (B, n, H', W, W')
            maps = torch.einsum("bnwrs,bnswv->bnrwsv", along_h, along_w)
            return maps.flatten(4).flatten(2, 3)  # (B, n, H W, H' W')
        distance = down[row][:, None, :, None] + across[column][:, None]  # (H, W, H', W')
        logits = q[:, :, row, column].flatten(2, 3) @ k.flatten(2, 3).transpose(2, 3)
        return self._weights(logits, distance.flatten(2).flatten(0, 1))

    def _weights(self, logits: Tensor, distance: Tensor) -> Tensor:
        """Weights from logits (B, n, ..., l, m) and distances (l, m)."""
        if self.decay is None:
            return logits.softmax(-1)
        rates = log_decays(self.num_heads, self.decay_start, self.decay_range).to(logits)
        bias = rates.view(-1, *[1] * (logits.ndim - 2)) * distance
        if self.decay == "product":
            return logits.softmax(-1) * bias.exp()
        return (logits + bias).softmax(-1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, axis: int | None, *lengths: int) -> Tensor:
        """New values (B, H, W, n, d) by attention along an axis, or over the map."""
        shape = v.shape
        q, k, v = (_to_sequences(x, axis) for x in (q, k, v))
        if self.decay is None:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            decay = (self.num_heads, self.decay_start, self.decay_range)
            tables = tuple(axis_decay(q, *decay, length) for length in lengths)
            out = attend(q, k, v, tables, printed=self.decay == "product")
        return _from_sequences(out, shape, axis)


def attend(
    q: Tensor, k: Tensor, v: Tensor, tables: tuple[Tensor, ...], printed: bool = False
) -> Tensor:
    """softmax(q k^T / sqrt(d) + b) v, or (softmax(q k^T / sqrt(d)) * exp(b)) v where `printed`.

    q, k, v are sequences (s, n, l, d); `tables` give the log-decays b, as `bias_of` says. Over
    whole maps a slice of the queries is computed at a time. Where there are several, each is
    computed again in the backward.
    """
    slices = query_slices(tables)
    if len(slices) == 1:
        return _attend_slice(q, k, v, slices[0], tables, printed)  # (s, n, l, d)
    again = torch.is_grad_enabled() and not _is_recorded()
    parts = []
    for rows in slices:
        arguments = (q[:, :, rows], k, v, rows, tables, printed)
        if again:
            parts.append(checkpoint(_attend_slice, *arguments, use_reentrant=False))
        else:
            parts.append(_attend_slice(*arguments))
    return torch.cat(parts, 2)  # (s, n, l, d)


def _is_recorded() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _attend_slice(
    q: Tensor, k: Tensor, v: Tensor, rows: slice, tables: tuple[Tensor, ...], printed: bool
) -> Tensor:
    bias = bias_of(tables, rows)  # (1, n, q, l)
    if not printed:
        if q.device.type != "cpu":  # a GPU's kernels ask for the dtype of the queries
            bias = bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    logits = (q @ k.transpose(-1, -2)).to(bias.dtype) * q.shape[-1] ** -0.5  # (s, n, q, l)
    return (torch.softmax(logits, -1) * bias.exp()).to(v.dtype) @ v  # (s, n, q, d)


def _rotate(x: Tensor, phase: Tensor) -> Tensor:
    """Turn each pair of channels of (B, H, W, n, d) by its phase, in the phase's precision."""
    pairs = x.to(phase.dtype).unflatten(-1, (-1, 2))  # (B, H, W, n, d / 2, 2)
    if _is_recorded():  # tracers and exporters know real arithmetic best
        (a, b), (cos, sin) = pairs.unbind(-1), phase.unbind(-1)
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(phase))
    return turned.flatten(-2).to(x.dtype)  # (B, H, W, n, d)


def _to_sequences(x: Tensor, axis: int | None) -> Tensor:
    """(B, H, W, n, d) to (sequences, n, length, d): its columns, its rows, or whole maps."""
    if axis == _ALONG_H:
        x = x.transpose(1, 2)  # (B, W, H, n, d)
    x = x.flatten(1, 2) if axis is None else x.flatten(0, 1)  # (s, l, n, d)
    return x.transpose(1, 2)  # (s, n, l, d)


def _from_sequences(x: Tensor, shape: torch.Size, axis: int | None) -> Tensor:
    """The inverse of `_to_sequences`; `shape` is (B, H, W, n, d)."""
    batch, height, width, heads, dim = shape
    x = x.transpose(1, 2)  # (s, l, n, d)
    if axis == _ALONG_H:
        return x.reshape(batch, width, height, heads, dim).transpose(1, 2)  # (B, H, W, n, d)
    return x.reshape(batch, height, width, heads, dim)  # (B, H, W, n, d)
