"""Manhattan attention: self-attention whose weights decay with the Manhattan distance.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523 (called MaSA there).
Follows: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py`, classes
`RetNetRelPos2d`, `VisionRetentionChunk` and `VisionRetentionAll`.

Deviations, none of which changes the published result:
- No mask of heads x positions x positions: attention runs through the fused kernel, in chunks of
  queries, with the bias formed from two one-dimensional decays and formed anew in the backward.
- Decays and rotary phases are computed in float64, cached per size, and never in the state dict.
"""

from collections.abc import Callable, Iterator
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers.precision import full_precision

_DECAYS = ("logit", "product", None)

# A chunk of the bias: at most this many queries, and at most this many bytes. On a CPU 256 queries
# measured best of 32 to 512 at 8192 positions and 8 heads.
_CHUNK_QUERIES = 256
_CHUNK_BYTES = 64 * 2**20

# Of one kind. A backbone of four stages has four phases and at most eight decays (two axes) for an
# image size: phases of twelve sizes are kept, decays of six.
_CACHED_TABLES = 48

# Axes of (B, H, W, n, d) along which attention runs; None is all positions.
_ALONG_H, _ALONG_W = 1, 2


def _bounded_cache(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep the latest tables by their arguments; the first argument is the tensor they are for.

    A table is an ordinary tensor even when it is made in inference mode: one that belonged to that
    mode could not take part in training later. Tracers, and tensors that are not ordinary (fake
    ones), get tables of their own kind, which are not kept.
    """
    tables: dict[tuple, Tensor] = {}

    @wraps(build)
    def lookup(like: Tensor, *key) -> Tensor:
        key = (*key, full_precision(like.dtype), like.device)
        if torch.compiler.is_compiling() or type(like) is not Tensor:
            return build(*key)
        table = tables.get(key)
        if table is None:
            with torch.inference_mode(False), torch.no_grad():
                table = build(*key)
            while len(tables) >= _CACHED_TABLES:
                tables.pop(next(iter(tables)), None)
            tables[key] = table
        return table

    lookup.tables = tables
    return lookup


def log_decays(num_heads: int, start: float, spread: float) -> Tensor:
    """log(gamma_i), gamma_i = 1 - 2^(-start - spread * i / num_heads), of head i; float64 (n,)."""
    head = torch.arange(num_heads, dtype=torch.float64, device="cpu")
    return torch.log1p(-torch.exp2(-start - spread * head / num_heads))


@_bounded_cache
def _axis_decay(
    num_heads: int,
    start: float,
    spread: float,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """|i - j| log(gamma) for positions i, j of one axis, (n, length, length)."""
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    distance = (position[:, None] - position).abs()  # (l, l)
    decay = log_decays(num_heads, start, spread)[:, None, None] * distance  # (n, l, l)
    return decay.to(dtype).to(device)


@_bounded_cache
def _rotary_phase(
    height: int, width: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """cos and sin of theta_j times the raster index, (H, W, 1, head_dim / 2, 2)."""
    theta = 10000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64, device="cpu")
    index = torch.arange(height * width, dtype=torch.float64, device="cpu")
    angle = (index[:, None] * theta).view(height, width, 1, -1)  # (H, W, 1, d / 2)
    return torch.stack((angle.cos(), angle.sin()), -1).to(dtype).to(device)


def _rotate(x: Tensor, phase: Tensor) -> Tensor:
    """Turn each pair of channels of (B, H, W, n, d) by its phase, in the phase's precision."""
    pairs = x.to(phase.dtype).unflatten(-1, (-1, 2))  # (B, H, W, n, d / 2, 2)
    if torch.compiler.is_compiling():  # tracers and exporters know real arithmetic best
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


def _query_ranges(heads: int, length: int, itemsize: int) -> list[range]:
    fits = _CHUNK_BYTES // (heads * length * itemsize)
    step = max(1, min(_CHUNK_QUERIES, length, fits))
    return [range(start, min(start + step, length)) for start in range(0, length, step)]


def _bias(tables: tuple[Tensor, Tensor], queries: range, buffer: Tensor | None = None) -> Tensor:
    """Bias of a range of raster positions from the decays along H and W, (1, n, queries, L).

    Four dimensions, because a three-dimensional mask takes the kernel's unfused path.
    """
    along_h, along_w = tables
    heads, height, width = along_h.shape[0], along_h.shape[-1], along_w.shape[-1]
    position = torch.arange(queries.start, queries.stop, device=along_h.device)
    rows = along_h[:, position // width].unsqueeze(-1)  # (n, q, H, 1)
    columns = along_w[:, position % width].unsqueeze(-2)  # (n, q, 1, W)
    if buffer is not None:
        shape = (heads, len(queries), height, width)
        buffer = buffer[: heads * len(queries) * height * width].view(shape)
    return torch.add(rows, columns, out=buffer).flatten(2).unsqueeze(0)  # (1, n, q, L)


def _chunks(tables: tuple[Tensor, ...]) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the queries with their bias.

    One table is attention along an axis, in one piece. Two tables are attention over whole maps,
    in pieces that share one buffer: each is valid until the next is asked for.
    """
    if len(tables) == 1:
        yield slice(None), tables[0].unsqueeze(0)  # (1, n, l, l)
        return
    along_h, along_w = tables
    heads, length = along_h.shape[0], along_h.shape[-1] * along_w.shape[-1]
    if isinstance(length, torch.SymInt):  # exported for any size: pieces would fix their number
        bias = along_h[:, :, None, :, None] + along_w[:, None, :, None]  # (n, H, W, H, W)
        yield slice(None), bias.flatten(3).flatten(1, 2).unsqueeze(0)  # (1, n, L, L)
        return
    ranges = _query_ranges(heads, length, along_h.element_size())
    buffer = None
    if not torch.compiler.is_compiling():
        buffer = along_h.new_empty(heads * len(ranges[0]) * length)
    for queries in ranges:
        yield slice(queries.start, queries.stop), _bias((along_h, along_w), queries, buffer)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d) + bias) v, and the logarithm of the softmax's denominator."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)


def _fused_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, log_sum, 0.0, False, attn_mask=bias
    )


class _FusedAttention(torch.autograd.Function):
    """Attention with decay by the CPU's fused kernel; the backward forms the bias again.

    With logits s = q k^T / sqrt(d) and log-decay b, the renormalised form is softmax(s + b) v. The
    printed form, (softmax(s) * exp(b)) v, is that times exp(logsumexp(s + b) - logsumexp(s)).
    """

    @staticmethod
    def forward(ctx, q, k, v, axis, printed, *tables):
        sequences = [_to_sequences(x, axis) for x in (q, k, v)]
        out, log_sum = _fused_chunks(*sequences, tables)
        plain = None
        if printed:
            plain = _fused(*sequences)[1]
            out = out * torch.exp(log_sum - plain).unsqueeze(-1).to(out.dtype)
        out = _from_sequences(out, v.shape, axis)
        ctx.save_for_backward(q, k, v, out, log_sum, plain, *tables)
        ctx.axis = axis
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, out, log_sum, plain, *tables = ctx.saved_tensors
        sequences = [_to_sequences(x, ctx.axis) for x in (grad.contiguous(), q, k, v, out)]
        if plain is None:
            grads = _backward(*sequences, log_sum, tables)
        else:
            grads = _printed_backward(*sequences, log_sum, plain, tables)
        grads = [_from_sequences(g, v.shape, ctx.axis) for g in grads]
        return *grads, None, None, *(None for _ in tables)


def _fused_chunks(
    q: Tensor, k: Tensor, v: Tensor, tables: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """The renormalised form (s, n, l, d) and its log-sum-exps (s, n, l)."""
    parts = [_fused(q[:, :, rows], k, v, bias) for rows, bias in _chunks(tables)]
    if len(parts) == 1:
        return parts[0]
    outs, log_sums = zip(*parts, strict=True)
    return torch.cat(outs, 2), torch.cat(log_sums, 2)  # (s, n, l, d), (s, n, l)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    tables: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """p * (grad v^T - rowsum(grad * out)) and what follows from it, p = softmax(s + b)."""
    if len(tables) == 1:
        return _fused_backward(grad, q, k, v, out, log_sum, tables[0].unsqueeze(0))
    grad_q = torch.empty_like(q)
    grad_k, grad_v = (torch.zeros_like(x, dtype=full_precision(x.dtype)) for x in (k, v))
    for rows, bias in _chunks(tables):
        part_q, part_k, part_v = _fused_backward(
            grad[:, :, rows], q[:, :, rows], k, v, out[:, :, rows], log_sum[:, :, rows], bias
        )
        grad_q[:, :, rows] = part_q
        grad_k += part_k
        grad_v += part_v
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def _printed_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    plain: Tensor,
    tables: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits' gradient p * (r grad v^T) - softmax(s) * rowsum(grad * out), r the row's mass.

    Either term is the kernel's p * (grad v^T - rowsum(grad * out)) with one part set to zero: the
    first by out = 0, the second by v = 0.
    """
    mass = torch.exp(log_sum - plain).unsqueeze(-1).to(grad.dtype)  # (s, n, l, 1)
    decayed = _backward(grad * mass, q, k, v, torch.zeros_like(out), log_sum, tables)
    unit, carried = torch.zeros_like(q), torch.zeros_like(q)
    unit[..., 0] = 1
    carried[..., 0] = (grad * out).sum(-1)
    undecayed = _fused_backward(unit, q, k, torch.zeros_like(v), carried, plain)
    return decayed[0] + undecayed[0], decayed[1] + undecayed[1], decayed[2]


def _portable_chunk(q: Tensor, k: Tensor, v: Tensor, queries: range, printed: bool, *tables):
    bias = tables[0].unsqueeze(0) if len(tables) == 1 else _bias(tables, queries)  # (1, n, q, L)
    if not printed:  # a GPU's kernels ask for the bias in the dtype of the queries
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
    logits = (q @ k.transpose(-1, -2)).to(bias.dtype) * q.shape[-1] ** -0.5  # (s, n, q, L)
    return (torch.softmax(logits, -1) * bias.exp()).to(v.dtype) @ v  # (s, n, q, d)


def _portable_attention(
    q: Tensor, k: Tensor, v: Tensor, axis: int | None, printed: bool, *tables: Tensor
) -> Tensor:
    """What `_FusedAttention` computes, by public functions that every device has."""
    shape = v.shape
    q, k, v = (_to_sequences(x, axis) for x in (q, k, v))
    heads, length = q.shape[1:3]
    ranges = [range(length)]
    if axis is None:
        ranges = _query_ranges(heads, length, tables[0].element_size())
    # Maps and biases are computed again in the backward; a decay along an axis is small.
    again = torch.is_grad_enabled() and (printed or axis is None)
    parts = []
    for queries in ranges:
        arguments = (q[:, :, queries.start : queries.stop], k, v, queries, printed, *tables)
        if again:
            parts.append(checkpoint(_portable_chunk, *arguments, use_reentrant=False))
        else:
            parts.append(_portable_chunk(*arguments))
    return _from_sequences(torch.cat(parts, 2), shape, axis)


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

    Under autocast the phases and, on a CPU, the decays and the softmax are float32.

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
        v = self.v_proj(x)
        out = self._attention(x, v)
        if self.lce is not None:
            local = self.lce(v.permute(0, 3, 1, 2))  # (B, C, H, W)
            out = out + local.permute(0, 2, 3, 1)  # (B, H, W, C)
        return self.out_proj(out)

    def _attention(self, x: Tensor, v: Tensor) -> Tensor:
        q, k, v = (self._heads(t) for t in (self.q_proj(x), self.k_proj(x), v))
        height, width, dim = *x.shape[1:3], q.shape[-1]
        if self.rotary:
            phase = _rotary_phase(q, height, width, dim)
            q, k = _rotate(q, phase), _rotate(k, phase)
        if self.decomposed:
            v = self._attend(q, k, v, _ALONG_W, width)
            v = self._attend(q, k, v, _ALONG_H, height)
        else:
            v = self._attend(q, k, v, None, height, width)
        return v.flatten(-2)  # (B, H, W, C)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))  # (B, H, W, n, d)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, axis: int | None, *lengths: int) -> Tensor:
        if self.decay is None:
            sequences = (_to_sequences(x, axis) for x in (q, k, v))
            return _from_sequences(F.scaled_dot_product_attention(*sequences), v.shape, axis)
        decay = (self.num_heads, self.decay_start, self.decay_range)
        tables = [_axis_decay(q, *decay, length) for length in lengths]
        attention = _FusedAttention.apply if q.device.type == "cpu" else _portable_attention
        return attention(q, k, v, axis, self.decay == "product", *tables)
