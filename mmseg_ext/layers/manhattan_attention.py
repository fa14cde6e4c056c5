"""Manhattan attention: self-attention whose weights decay with the Manhattan distance.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523 (called MaSA there).
Follows: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py`, classes
`RetNetRelPos2d`, `VisionRetentionChunk` and `VisionRetentionAll`.

Deviations, which do not change the published result: attention runs in slices of the queries, so
there is no mask of heads x positions x positions, and the state dict has no decays or phases.
`ManhattanBlock` follows `RetBlock` and `FeedForwardNetwork` of the same file. The depthwise
convolution of its feed-forward network, and the gain per channel in the later stages, are in this
code, but not in the paper's figure.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from mmseg_ext.layers.fused_attention import fused_attention
from mmseg_ext.layers.input_shapes import channels_first, channels_last, head_width, require_map
from mmseg_ext.layers.precision import compute_dtype, full_precision
from mmseg_ext.layers.programs import is_fixed, is_recorded, recomputed
from mmseg_ext.torch_versions import HAS_MIXED_MASKS

Decay = Literal["logit", "product"]

# Attention along H: the bias of all columns has at most this many bytes.
_COLUMN_BYTES = 8 * 2**20
# Full attention: a slice has at most this many bytes of bias, and on a CPU this many queries: 256
# measured best of 32 to 512 at 8192 positions and 8 heads.
_BYTES = 64 * 2**20
_QUERIES_CPU = 256


class PositionTerms(NamedTuple):
    """Terms of Manhattan attention that depend only on the size, device and dtype of the map.

    `phase` are cos and sin (H, W, 1, d / 2, 2), `inverse` cos and -sin for the backward pass, which
    recorded programs do not need. `decays` are the log-decay of each head (n,). `biases` are the
    log-decays times the distances (1, n, l, l): along W and along H, or for full attention in the
    map; None if attention runs in slices. Along H it may be repeated for each column, (1, W n, H,
    H).
    """

    phase: Tensor | None
    inverse: Tensor | None
    decays: Tensor | None
    biases: tuple[Tensor | None, ...]


class ManhattanAttention(nn.Module):
    """Self-attention over a map with one decay per head, (B, H, W, C) to (B, H, W, C).

    Head i weighs a position at Manhattan distance m by gamma_i^m, with
    gamma_i = 1 - 2^(-a - r i / n) for `decay_start` a, `decay_range` r and n heads.

    `rotary=True` rotates queries and keys by a phase of the raster index h W + w, as in the
    published code. The paper's equations do not have it. Along H the phase between two rows is
    W theta, so the function of a trained model depends on the width of the map.

    Under autocast the phases are float32; on a CPU the decays and the softmax are too.
    Normalize the input: for values around 1000 full attention has wrong gradients in float32.

    Args:
        embed_dim: C, a multiple of `num_heads`.
        decay: 'logit' is the published code. It adds log(gamma) m before the softmax, so the
            weights sum to one. 'product' is the equation in the paper, (softmax(Q K^T) * D) V,
            whose weights sum to less than one; renormalized they equal the weights of 'logit'.
            None is attention without a decay.
        decomposed: attend along W and then, with the same queries and keys, along H:
            Attn_H (Attn_W V), at O(HW (H + W)) instead of O((HW)^2).
        lce: local context enhancement, a depthwise 5x5 convolution of the values that is added
            before the output projection.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, if the head width is odd with
            `rotary=True`, or if `decay` is unknown.
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
        width = head_width(embed_dim, num_heads)
        if rotary and width % 2:
            raise ValueError(
                f"embed_dim={embed_dim}, num_heads={num_heads}: rotary needs an even head width, "
                f"not {width}"
            )
        if decay not in (*get_args(Decay), None):
            raise ValueError(f"decay must be 'logit', 'product' or None, not {decay!r}")
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

    def forward(self, x: Tensor, terms: PositionTerms | None = None) -> Tensor:
        """Map x (B, H, W, C) to (B, H, W, C); raise a ValueError for another shape.

        Layers with equal settings can share the `terms` of maps of one size.
        """
        require_map(x, self.embed_dim, last=True)
        if terms is None:
            terms = self.position_terms(x)
        q, k, value = self._heads(x, terms)  # (B, H, W, n, d)
        if self.decomposed:
            along_w = self._attend(q, k, value, terms.biases[0])
            bias = terms.biases[1]
            if bias is None or bias.shape[1] == self.num_heads:
                q, k, v = (t.transpose(1, 2) for t in (q, k, along_w))  # (B, W, H, n, d)
                out = self._attend(q, k, v, bias).transpose(1, 2)
            else:  # columns as heads
                q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, along_w))
                out = attend(q, k, v, bias, self.decay == "product")  # (B, W n, H, d)
                out = out.transpose(1, 2)
                out = out.unflatten(2, value.shape[2:4])
        else:
            out = self._attend_to_map(q, k, value, terms, x)
        out = out.flatten(-2)  # (B, H, W, C)
        if self.lce is not None:
            # In this order, because the sum has the memory layout of its first term.
            out = channels_last(self.lce(channels_first(value.flatten(-2)))) + out
        return self.out_proj(out)

    def position_terms(self, x: Tensor) -> PositionTerms:
        """Compute the terms that depend only on the size, device and dtype of x (B, H, W, C)."""
        height, width = x.shape[1:3]
        phase, inverse = self._phase(x)
        if self.decay is None:
            return PositionTerms(phase, inverse, None, (None, None))
        decays = self._log_decays(x)
        if self.decomposed:
            along_w = self._bias(x, decays, _distances(width, x))
            along_h = self._bias(x, decays, _distances(height, x))
            # With columns as heads, queries, keys and values of several images need no copies.
            repeats = not is_recorded() and len(x) > 1
            if repeats and along_h.nbytes * width <= _COLUMN_BYTES:
                along_h = along_h.repeat(1, width, 1, 1)  # (1, W n, H, H)
            return PositionTerms(phase, inverse, decays, (along_w, along_h))
        if _slice_size(self.num_heads, height * width, x) is not None:
            return PositionTerms(phase, inverse, decays, (None,))  # each slice computes its own
        positions = torch.arange(height * width, device=x.device)
        bias = self._bias(x, decays, manhattan_distance(positions, height, width))
        return PositionTerms(phase, inverse, decays, (bias,))

    def _phase(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the phases of the map x (B, H, W, C), and for eager programs their inverse."""
        if not self.rotary:
            return None, None
        phase = rotary_phase(x.shape[1], x.shape[2], self.embed_dim // self.num_heads, like=x)
        if is_recorded():
            return phase, None
        return phase, torch.view_as_real(torch.view_as_complex(phase).conj().resolve_conj())

    def _bias(self, x: Tensor, decays: Tensor, distance: Tensor) -> Tensor:
        """Return the log-decays (1, n, l', l) at distances (l', l)."""
        # A mask with three dimensions would take the kernel's unfused path.
        bias = decays.view(1, -1, 1, 1) * distance  # (1, n, l', l)
        # Kernels of GPUs require the dtype of the queries, as all kernels of older torch.
        keeps_dtype = x.device.type == "cpu" and HAS_MIXED_MASKS
        if self.decay == "product" or keeps_dtype:
            return bias
        return bias.to(compute_dtype(x))

    def _heads(self, x: Tensor, terms: PositionTerms) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, rotated keys, and values, each (B, H, W, n, d)."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)) for p in projections)
        phase, inverse = terms.phase, terms.inverse
        if phase is None:
            return q, k, v
        if inverse is None or is_recorded():
            return rotate_real(q, phase), rotate_real(k, phase), v
        q, k = _Rotation.apply(q, k, phase, inverse)
        return q, k, v

    def attention_map(self, x: Tensor, position: tuple[int, int] | None = None) -> Tensor:
        """Return the weights of the values for x (B, H, W, C), (B, n, N, N) with N = H W.

        Positions are in raster order, queries before keys. `position` (row, column) selects one
        query and gives (B, n, 1, N). In the decomposed form a weight is a product: along the column
        of the query times along the row of the key.
        """
        require_map(x, self.embed_dim, last=True)
        height, width = x.shape[1:3]
        row, column = slice(None), slice(None)  # of the queries
        if position is not None:
            row = slice(position[0], position[0] + 1)
            column = slice(position[1], position[1] + 1)
        phase, inverse = self._phase(x)
        q, k, _ = self._heads(x, PositionTerms(phase, inverse, None, ()))
        q = q.permute(0, 3, 1, 2, 4)  # (B, n, H, W, d)
        k = k.permute(0, 3, 1, 2, 4)  # (B, n, H, W, d)
        q = q * q.shape[-1] ** -0.5
        if self.decomposed:
            return self._decomposed_map(q, k, row, column)
        raster = torch.arange(height * width, device=x.device).view(height, width)
        queries = raster[row, column].flatten()
        distance = manhattan_distance(queries, height, width)  # (H W, H' W')
        logits = q[:, :, row, column].flatten(2, 3) @ k.flatten(2, 3).transpose(2, 3)
        return self._weights(logits, distance)

    def _decomposed_map(self, q: Tensor, k: Tensor, row: slice, column: slice) -> Tensor:
        """Return the weights (B, n, H W, H' W') for scaled queries and keys (B, n, H, W, d).

        `row` and `column` select the queries.
        """
        height, width = q.shape[2:4]
        rows = torch.arange(height, device=q.device)[row]
        columns = torch.arange(width, device=q.device)[column]
        down = manhattan_distance(rows, 1, height)  # (H, H')
        across = manhattan_distance(columns, 1, width)  # (W, W')
        queries = q[:, :, row].transpose(2, 3)  # (B, n, W, H, d)
        keys = k.permute(0, 1, 3, 4, 2)  # (B, n, W', d, H')
        # (B, n, W, H, H'), then (B, n, H', W, W')
        along_h = self._weights(queries[:, :, column] @ keys[:, :, column], down)
        along_w = self._weights(q[:, :, :, column] @ k.transpose(3, 4), across)
        maps = torch.einsum("bnwrs,bnswv->bnrwsv", along_h, along_w)
        return maps.flatten(4).flatten(2, 3)

    def _weights(self, logits: Tensor, distance: Tensor) -> Tensor:
        """Return weights of the shape of logits (B, n, ..., l, m), for distances (l, m)."""
        if self.decay is None:
            return logits.softmax(-1)
        one_per_head = [-1] + [1] * (logits.ndim - 2)
        bias = self._log_decays(logits).view(one_per_head) * distance
        if self.decay == "product":
            return logits.softmax(-1) * bias.exp()
        return (logits + bias).softmax(-1)

    def _log_decays(self, like: Tensor) -> Tensor:
        """Return the log-decay of each head (n,)."""
        return _in_float64(
            log_decays, self.num_heads, self.decay_start, self.decay_range, like=like
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Attend along the third dimension, (B, H, W, n, d) to (B, H, W, n, d)."""
        q, k, values = (t.flatten(0, 1).transpose(1, 2) for t in (q, k, v))
        out = attend(q, k, values, bias, self.decay == "product")  # (B H, n, W, d)
        return out.transpose(1, 2).reshape(v.shape)

    def _attend_to_map(
        self, q: Tensor, k: Tensor, v: Tensor, terms: PositionTerms, x: Tensor
    ) -> Tensor:
        """Attend to all positions, (B, H, W, n, d) to (B, H, W, n, d), for the layer's input x."""
        height, width = x.shape[1:3]
        q, k, values = (t.flatten(1, 2).transpose(1, 2) for t in (q, k, v))  # (B, n, L, d)
        printed = self.decay == "product"
        decays, step = terms.decays, _slice_size(self.num_heads, height * width, x)
        if step is None or decays is None:
            out = attend(q, k, values, terms.biases[0], printed)  # (B, n, L, d)
            return out.transpose(1, 2).reshape(v.shape)

        def attend_slice(queries: Tensor, k: Tensor, values: Tensor, start: int) -> Tensor:
            positions = torch.arange(start, start + queries.shape[2], device=x.device)
            bias = self._bias(x, decays, manhattan_distance(positions, height, width))
            return attend(queries, k, values, bias, printed)

        parts = []
        for i, queries in enumerate(q.split(step, 2)):  # each (B, n, l', d)
            attend_from = partial(attend_slice, start=i * step)
            parts.append(recomputed(attend_from, queries, k, values))
        return torch.cat(parts, 2).transpose(1, 2).reshape(v.shape)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, printed: bool = False) -> Tensor:
    """Compute softmax(q k^T / sqrt(d) + b) v, or (softmax(q k^T / sqrt(d)) * exp(b)) v.

    `printed` selects the second form, the paper's equation. q is (s, n, l', d), k and v are
    (s, n, l, d), and b is (1, n, l', l) or None for zero.
    """
    if bias is None or not printed:
        return fused_attention(q, k, v, attn_mask=bias)
    logits = (q @ k.transpose(-1, -2)).to(bias.dtype) * q.shape[-1] ** -0.5
    return (torch.softmax(logits, -1) * bias.exp()).to(v.dtype) @ v  # (s, n, l', d)


def _slice_size(num_heads: int, length: int, x: Tensor) -> int | None:
    """Return the number of queries in a slice of full attention; None for all in one."""
    if not is_fixed(length):
        return None  # a program for any size cannot contain a fixed number of slices
    step = max(1, _BYTES // (num_heads * length * max(4, x.element_size())))
    if x.device.type == "cpu":
        step = min(step, _QUERIES_CPU)
    return step if step < length else None


def _distances(length: int, like: Tensor) -> Tensor:
    """Return the distances between the positions of a line, (length, length)."""
    positions = torch.arange(length, device=like.device)
    return (positions[:, None] - positions).abs()


def manhattan_distance(positions: Tensor, height: int, width: int) -> Tensor:
    """Return the distances of raster positions (q,) to all positions, (q, height x width)."""
    row = positions // width
    column = positions - row * width  # ONNX has no remainder for a symbolic width
    down = (row[:, None] - torch.arange(height, device=positions.device)).abs()  # (q, H)
    across = (column[:, None] - torch.arange(width, device=positions.device)).abs()  # (q, W)
    return (down[:, :, None] + across[:, None]).flatten(1)  # (q, H W)


def log_decays(
    num_heads: int, start: float, spread: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Return log(1 - 2^(-start - spread i / num_heads)) for each head i, float64 (num_heads,)."""
    head = torch.arange(num_heads, dtype=torch.float64, device=device)
    return torch.log1p(-torch.exp2(-start - spread * head / num_heads))


def rotary_phase(height: int, width: int, head_dim: int, like: Tensor) -> Tensor:
    """Return cos and sin of theta_j times the raster index, (H, W, 1, head_dim / 2, 2).

    They are on the device of `like`, in float32 at least. The sum formulas give them from the
    float64 angles of the rows and of the columns.
    """
    phases = _in_float64(_axis_phases, height, width, head_dim, like=like)
    rows, columns = phases[:height, None], phases[height:]
    (cos_row, sin_row), (cos, sin) = rows.unbind(-1), columns.unbind(-1)
    real, imaginary = cos_row * cos - sin_row * sin, sin_row * cos + cos_row * sin
    return torch.stack((real, imaginary), -1)


def _axis_phases(height: int, width: int, head_dim: int, device: torch.device | str) -> Tensor:
    """Return cos and sin of theta_j h W, then of theta_j w, (height + width, 1, d / 2, 2)."""
    options = {"dtype": torch.float64, "device": device}
    theta = 10000.0 ** -torch.linspace(0, 1, head_dim // 2, **options)  # (d / 2,)
    rows = torch.arange(height, **options) * width
    index = torch.cat((rows, torch.arange(width, **options)))
    angle = index[:, None, None] * theta  # (height + width, 1, d / 2)
    return torch.stack((angle.cos(), angle.sin()), -1)


def _in_float64(function: Callable[..., Tensor], *arguments: float, like: Tensor) -> Tensor:
    """Return `function(*arguments, device)` on the device of `like`, in float32 at least."""
    # On the device, because a copy from the host would wait for the GPU. MPS has no float64.
    place = "cpu" if like.device.type == "mps" else like.device
    return function(*arguments, device=place).to(like.device, full_precision(like.dtype))


class _Rotation(torch.autograd.Function):
    """`rotate_real` of queries and keys in complex numbers, a product each.

    Its backward pass multiplies by the inverse phases of the stage. Autograd would conjugate the
    phases again for each product, in operators that a GPU waits for.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, phase: Tensor, inverse: Tensor):
        ctx.save_for_backward(phase, inverse)
        return _rotate(q, phase), _rotate(k, phase)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        phase, inverse = ctx.saved_tensors
        of_q, of_k = gradients
        if torch.is_grad_enabled():  # second derivatives
            of_q, of_k = _Rotation.apply(of_q, of_k, inverse, phase)
        else:
            of_q, of_k = _rotate(of_q, inverse), _rotate(of_k, inverse)
        return of_q, of_k, None, None


def _rotate(x: Tensor, phase: Tensor) -> Tensor:
    """Compute `rotate_real` in complex numbers, with phases of the dtype float32 or float64."""
    if x.stride(-1) != 1:  # not a view of complex numbers
        x = x.contiguous()
    pairs = x.to(phase.dtype).unflatten(-1, (-1, 2))  # (B, H, W, n, d / 2, 2)
    product = torch.view_as_complex(pairs) * torch.view_as_complex(phase)
    return torch.view_as_real(product).flatten(-2).to(x.dtype)  # (B, H, W, n, d)


def rotate_real(x: Tensor, phase: Tensor) -> Tensor:
    """Rotate each pair of channels of x (B, H, W, n, d) by its phase, in the phase's precision.

    Tracers and exporters support this form, which has no complex numbers.
    """
    pairs = x.to(phase.dtype).unflatten(-1, (-1, 2))  # (B, H, W, n, d / 2, 2)
    (a, b), (cos, sin) = pairs.unbind(-1), phase.unbind(-1)
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1)
    return rotated.flatten(-2).to(x.dtype)  # (B, H, W, n, d)


class FeedForward(nn.Module):
    """Linear, GELU, plus a depthwise 3x3 convolution of the result, linear; on (B, H, W, C)."""

    def __init__(self, embed_dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.dwconv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc1(x))  # (B, H, W, hidden_dim)
        x = x + channels_last(self.dwconv(channels_first(x)))
        return self.fc2(x)


class ManhattanBlock(nn.Module):
    """x + CPE(x), then x + MaSA(LN(x)), then x + FFN(LN(x)); on (B, H, W, C).

    Args:
        ffn_ratio: hidden width of the feed-forward network divided by `embed_dim`.
        drop_path: a module applied last in both residual branches, for stochastic depth, unless
            `forward` gets `divisors`.
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
            self.gamma1 = nn.Parameter(torch.full((embed_dim,), layer_scale))
            self.gamma2 = nn.Parameter(torch.full((embed_dim,), layer_scale))

    def forward(
        self,
        x: Tensor,
        terms: PositionTerms | None = None,
        divisors: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Map x (B, H, W, C) to (B, H, W, C); raise a ValueError for another shape.

        Blocks with equal settings can share `attn.position_terms(x)`. For `divisors` of both
        branches see `mmseg_ext.layers.stochastic_depth`.
        """
        require_map(x, self.attn.embed_dim, last=True)
        if self.cpe is not None:
            x = x + channels_last(self.cpe(channels_first(x)))
        first, second = None, None
        if divisors is not None:
            first, second = divisors
        if takes_terms(self.attn):
            branch = self.attn(self.norm1(x), terms)
        else:
            branch = self.attn(self.norm1(x))
        x = x + self._scaled_branch(branch, self.gamma1, first)
        return x + self._scaled_branch(self.ffn(self.norm2(x)), self.gamma2, second)

    def _scaled_branch(
        self, branch: Tensor, gamma: Tensor | None, divisor: Tensor | None
    ) -> Tensor:
        """Apply the layer scale and stochastic depth to a residual branch (B, H, W, C)."""
        if gamma is not None:
            branch = gamma * branch
        if divisor is not None:
            return branch / divisor
        return self.drop_path(branch)


def takes_terms(module: nn.Module) -> bool:
    """Check if the forward of this file runs, and not an adapter's, which only knows x."""
    own = type(module).forward in (ManhattanAttention.forward, ManhattanBlock.forward)
    return own and "forward" not in module.__dict__
