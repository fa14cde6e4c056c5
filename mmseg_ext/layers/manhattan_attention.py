"""Manhattan attention: self-attention whose weights decay with the Manhattan distance.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523 (called MaSA there).
Follows: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py`, classes
`RetNetRelPos2d`, `VisionRetentionChunk` and `VisionRetentionAll`.

Deviations, none of which changes the published result:
- No mask of heads x positions x positions: attention runs in slices of the queries, with the bias
  formed from two one-dimensional decays, and a slice is computed again in the backward.
- Decays and rotary phases come from the positions in every forward; the state dict has none.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers.precision import full_precision
from mmseg_ext.layers.shapes import is_fixed, require_channels_last_map

Decay = Literal["logit", "product"]
_DECAYS = (*get_args(Decay), None)

# A slice of whole maps: at most this many queries, and at most this many bytes of bias. On a CPU
# 256 queries measured best of 32 to 512 at 8192 positions and 8 heads.
_QUERIES = 256
_BYTES = 64 * 2**20


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
            `rotary`, or `decay` is unknown.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        decay_start: float = 2.0,
        decay_range: float = 4.0,
        decomposed: bool = True,
        decay: Decay | None = "logit",
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
            v = self._attend(q, k, v, 1, width)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, W, H, n, d)
            v = self._attend(q, k, v, 1, height).transpose(1, 2)
        else:
            v = self._attend(q, k, v, height, width)
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
            phase = rotary_phase(*q.shape[1:3], head_dim=q.shape[-1], like=q)
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
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape[1:3])
        if self.decomposed:
            queries, keys = q[:, :, row].transpose(2, 3), k.permute(0, 1, 3, 4, 2)
            down = manhattan_distance(rows[row], 1, len(rows))  # (H, H')
            across = manhattan_distance(columns[column], 1, len(columns))  # (W, W')
            along_h = self._weights(queries[:, :, column] @ keys[:, :, column], down)
            along_w = self._weights(q[:, :, :, column] @ k.transpose(3, 4), across)
            # (B, n, W, H, H') and (B, n, H', W, W')
            maps = torch.einsum("bnwrs,bnswv->bnrwsv", along_h, along_w)
            return maps.flatten(4).flatten(2, 3)  # (B, n, H W, H' W')
        raster = (rows[row, None] * len(columns) + columns[column]).flatten()
        distance = manhattan_distance(raster, len(rows), len(columns))  # (H W, H' W')
        logits = q[:, :, row, column].flatten(2, 3) @ k.flatten(2, 3).transpose(2, 3)
        return self._weights(logits, distance)

    def _weights(self, logits: Tensor, distance: Tensor) -> Tensor:
        """Weights from logits (B, n, ..., l, m) and distances (l, m)."""
        if self.decay is None:
            return logits.softmax(-1)
        bias = self._log_decays(logits).view(-1, *[1] * (logits.ndim - 2)) * distance
        if self.decay == "product":
            return logits.softmax(-1) * bias.exp()
        return (logits + bias).softmax(-1)

    def _log_decays(self, like: Tensor) -> Tensor:
        decays = log_decays(self.num_heads, self.decay_start, self.decay_range)  # (n,)
        return decays.to(like.device, full_precision(like.dtype))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, height: int, width: int) -> Tensor:
        """New values by attention over maps of the last two positions' axes.

        Takes and gives (B, H, W, n, d). With `height` 1 each row is a map of its own.
        """
        first = 0 if self.decomposed else 1
        q, k, values = (t.flatten(first, first + 1).transpose(1, 2) for t in (q, k, v))
        if self.decay is None:
            out = F.scaled_dot_product_attention(q, k, values)  # (s, n, l, d)
        else:
            printed = self.decay == "product"
            out = attend(q, k, values, self._log_decays(q), height, width, printed)
        return out.transpose(1, 2).reshape(v.shape)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decays: Tensor,
    height: int,
    width: int,
    printed: bool = False,
) -> Tensor:
    """softmax(q k^T / sqrt(d) + b) v, or (softmax(q k^T / sqrt(d)) * exp(b)) v where `printed`.

    q, k, v are (s, n, l, d), whose l = height x width positions are in raster order; b is the
    log-decay of the head, `decays` (n,), times the Manhattan distance. Over maps of several rows a
    slice of the queries is computed at a time, and again in the backward.
    """
    step = _slice_length(height, width, decays)
    if step is None:
        return _attend_slice(q, k, v, decays, 0, height, width, printed)  # (s, n, l, d)
    again = torch.is_grad_enabled() and not _is_recorded()
    parts = []
    for start in range(0, height * width, step):
        arguments = (q[:, :, start : start + step], k, v, decays, start, height, width, printed)
        if again:
            parts.append(checkpoint(_attend_slice, *arguments, use_reentrant=False))
        else:
            parts.append(_attend_slice(*arguments))
    return torch.cat(parts, 2)  # (s, n, l, d)


def _slice_length(height: int, width: int, decays: Tensor) -> int | None:
    """Queries in a slice; None where all are one: few, along an axis, or in a program for any
    size, whose number of slices would be fixed."""
    length = height * width
    if not is_fixed(length) or height == 1 or length <= _QUERIES:
        return None
    return max(1, min(_QUERIES, _BYTES // (decays.nbytes * length)))


def _attend_slice(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decays: Tensor,
    start: int,
    height: int,
    width: int,
    printed: bool,
) -> Tensor:
    """`attend` for the queries from position `start` on, q (s, n, l', d)."""
    positions = torch.arange(start, start + q.shape[2], device=q.device)
    # Four dimensions: a mask of three takes the kernel's unfused path.
    bias = decays.view(1, -1, 1, 1) * manhattan_distance(positions, height, width)  # (1, n, l', l)
    if not printed:
        if q.device.type != "cpu":  # a GPU's kernels ask for the dtype of the queries
            bias = bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    logits = (q @ k.transpose(-1, -2)).to(bias.dtype) * q.shape[-1] ** -0.5  # (s, n, l', l)
    return (torch.softmax(logits, -1) * bias.exp()).to(v.dtype) @ v  # (s, n, l', d)


def manhattan_distance(positions: Tensor, height: int, width: int) -> Tensor:
    """Distances of raster positions (q,) to all of a map, (q, height x width)."""
    row = positions // width
    column = positions - row * width  # ONNX has no remainder by a width that is a variable
    down = (row[:, None] - torch.arange(height, device=positions.device)).abs()  # (q, H)
    across = (column[:, None] - torch.arange(width, device=positions.device)).abs()  # (q, W)
    return (down[:, :, None] + across[:, None]).flatten(1)  # (q, H W)


def log_decays(num_heads: int, start: float, spread: float) -> Tensor:
    """log(gamma_i), gamma_i = 1 - 2^(-start - spread * i / num_heads), of head i; float64 (n,)."""
    head = torch.arange(num_heads, dtype=torch.float64, device="cpu")
    return torch.log1p(-torch.exp2(-start - spread * head / num_heads))


def rotary_phase(height: int, width: int, head_dim: int, like: Tensor) -> Tensor:
    """cos and sin of theta_j times the raster index, (H, W, 1, head_dim / 2, 2).

    On the device of `like`, in float32 at least. The angles are float64: those of the rows and of
    the columns, whose sums' cosines and sines follow.
    """
    theta = 10000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64, device="cpu")
    parts = []
    for count, stride in ((height, width), (width, 1)):
        index = torch.arange(count, dtype=torch.float64, device="cpu") * stride
        angle = index[:, None, None] * theta  # (count, 1, d / 2)
        phase = torch.stack((angle.cos(), angle.sin()), -1)
        parts.append(phase.to(like.device, full_precision(like.dtype)))
    (cos_row, sin_row), (cos, sin) = parts[0][:, None].unbind(-1), parts[1].unbind(-1)
    real, imaginary = cos_row * cos - sin_row * sin, sin_row * cos + cos_row * sin
    return torch.stack((real, imaginary), -1)


def _is_recorded() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _rotate(x: Tensor, phase: Tensor) -> Tensor:
    """Turn each pair of channels of (B, H, W, n, d) by its phase, in the phase's precision."""
    pairs = x.to(phase.dtype).unflatten(-1, (-1, 2))  # (B, H, W, n, d / 2, 2)
    if _is_recorded():  # tracers and exporters know real arithmetic best
        (a, b), (cos, sin) = pairs.unbind(-1), phase.unbind(-1)
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(phase))
    return turned.flatten(-2).to(x.dtype)  # (B, H, W, n, d)
