"""What Manhattan attention adds and turns by: decays and rotary phases, computed once per size.

In float64 and never in a state dict. A bias over whole maps, of heads x positions x positions, is
formed for a slice of the queries at a time from two one-dimensional decays.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from mmseg_ext.layers.precision import full_precision
from mmseg_ext.layers.shapes import is_fixed

# A slice of the bias: at most this many queries, and at most this many bytes. On a CPU 256 queries
# measured best of 32 to 512 at 8192 positions and 8 heads.
_QUERIES = 256
_BYTES = 64 * 2**20

# Of one kind. A backbone of four stages has four phases and at most eight decays (two axes) for an
# image size: phases of twelve sizes are kept, decays of six.
_CACHED_TABLES = 48


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
def axis_decay(
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
def rotary_phase(
    height: int, width: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """cos and sin of theta_j times the raster index, (H, W, 1, head_dim / 2, 2)."""
    theta = 10000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64, device="cpu")
    index = torch.arange(height * width, dtype=torch.float64, device="cpu")
    angle = (index[:, None] * theta).view(height, width, 1, -1)  # (H, W, 1, d / 2)
    return torch.stack((angle.cos(), angle.sin()), -1).to(dtype).to(device)


def query_slices(tables: tuple[Tensor, ...]) -> list[slice]:
    """Slices of the queries over which a bias is small enough; one axis is one slice."""
    heads, length = tables[0].shape[0], tables[0].shape[-1]
    if len(tables) == 1:
        return [slice(0, length)]
    length = length * tables[1].shape[-1]
    if not is_fixed(length):  # a program for any size: slices would fix their number
        return [slice(0, length)]
    step = max(1, min(_QUERIES, _BYTES // (heads * length * tables[0].element_size())))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def bias_of(tables: tuple[Tensor, ...], queries: slice) -> Tensor:
    """The log-decays of a slice of the queries to all positions, (1, n, queries, L).

    `tables` are the decays along H and along W (n, l, l), or those of the one axis along which
    attention runs. Four dimensions, because a three-dimensional mask takes the kernel's unfused
    path.
    """
    if len(tables) == 1:
        return tables[0].unsqueeze(0)
    along_h, along_w = tables
    width = along_w.shape[-1]
    position = torch.arange(queries.start, queries.stop, device=along_h.device)
    row = position // width
    column = position - row * width  # ONNX has no remainder by a width that is a variable
    rows = along_h[:, row].unsqueeze(-1)  # (n, q, H, 1)
    columns = along_w[:, column].unsqueeze(-2)  # (n, q, 1, W)
    return (rows + columns).flatten(2).unsqueeze(0)  # (1, n, q, L)
