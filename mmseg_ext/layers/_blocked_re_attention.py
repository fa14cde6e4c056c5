"""Re-attention in blocks of queries: from the softmax to the weighted sum, one block after another.

Mixing and batch norm are one matrix and one constant per head, so a block needs no other; the maps
of all heads never exist together. In training the batch statistics come first, from the covariance
of the heads' softmax maps, and the backward computes each block again. Against the maps of all
heads, at width 384 with 12 heads and the 1025 tokens of the configs' 512x512 crops
(docs/deepvit.md):

    batch 2: inference 412.1 to 61.5 ms, a training step 1348.8 to 676.0 ms
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.submodules import computes_by_weights, update_running_statistics

# One block of queries keeps its maps in the last-level cache on a CPU: 4 MiB measured best of
# 0.5 to 16 MiB for 197 to 1025 tokens. Elsewhere the block only bounds the memory.
_BLOCK_BYTES = {"cpu": 4 * 2**20}
_BLOCK_BYTES_ELSEWHERE = 256 * 2**20
# With gradients, blocks are computed again in the backward: at 1025 tokens that measured faster
# than keeping the maps, at 197 slower.
_RECOMPUTED_TOKENS = 512


def should_use(x: Tensor, drop: nn.Dropout, mixing: nn.Conv2d, norm: nn.Module) -> bool:
    """Whether blocks are right, and faster, for tokens x (B, N, C)."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False  # a program has one number of blocks
    if not computes_by_weights(drop, mixing, norm):
        return False
    if torch.is_grad_enabled() and x.shape[1] < _RECOMPUTED_TOKENS:
        return False
    # Dropped entries change the maps' mean; synchronised statistics are the whole group's.
    dropped = drop.training and drop.p > 0
    return not dropped and not (norm.training and isinstance(norm, nn.SyncBatchNorm))


def attend(
    q: Tensor, k: Tensor, v: Tensor, mixing: nn.Conv2d, norm: _BatchNorm, stretch: float
) -> Tensor:
    """The weighted values (B, N, H, d) of queries, keys and values (B, H, N, d).

    The softmax maps times `stretch` go through `mixing` across the heads and through `norm`.
    """
    matrix = mixing.weight.flatten(1).to(full_precision(q.dtype)) * stretch  # (H, H)
    with autocast_disabled(q):
        affine = _affine(matrix, mixing, norm, q, k)
    return torch.cat([_again(_block, q[:, :, rows], k, v, *affine) for rows in _blocks(q)], 1)


def _block(q: Tensor, k: Tensor, v: Tensor, matrix: Tensor, constant: Tensor) -> Tensor:
    """The weighted values (B, n, H, d) of n queries: `matrix` across the heads, and `constant`."""
    maps = _softmax_maps(q, k)  # (B, H, n, N)
    with autocast_disabled(maps):
        batch, heads = maps.shape[:2]
        addend = constant.expand(batch, heads)[..., None]
        mixed = torch.baddbmm(addend, matrix.expand(batch, -1, -1), maps.flatten(2))
    return (mixed.view_as(maps).to(v.dtype) @ v).transpose(1, 2)


def _affine(
    matrix: Tensor, mixing: nn.Conv2d, norm: _BatchNorm, q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor]:
    """Mixing and batch norm as a matrix (H, H) and a constant (H)."""
    dtype = matrix.dtype
    assert mixing.bias is not None
    bias = mixing.bias.to(dtype)
    if norm.training or norm.running_mean is None or norm.running_var is None:
        mean, variance = _learn_statistics(norm, q, k, matrix, bias)
    else:
        mean, variance = norm.running_mean.to(dtype), norm.running_var.to(dtype)
    gain = norm.weight.to(dtype) * (variance + norm.eps).rsqrt()  # (H)
    return matrix * gain[:, None], norm.bias.to(dtype) + gain * (bias - mean)


def _learn_statistics(
    norm: _BatchNorm, q: Tensor, k: Tensor, matrix: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance (H) of the mixed maps, which also move the running statistics.

    A softmax map has the mean 1/N exactly, and the variance of a mixture follows from the heads'
    covariance, so the mixed maps are not needed.
    """
    batch, _, tokens, _ = q.shape
    count = batch * tokens * tokens
    sums = [_again(_centred_products, q[:, :, rows], k) for rows in _blocks(q)]
    covariance = torch.stack(sums).sum(0) / count  # (H, H)
    mean = matrix.sum(1) / tokens + bias  # (H)
    variance = ((matrix @ covariance) * matrix).sum(1)  # (H)
    if norm.running_mean is not None:
        update_running_statistics(norm, mean, variance, count)
    return mean, variance


def _centred_products(q: Tensor, k: Tensor) -> Tensor:
    """Products of the heads' maps less their mean 1/N, summed over all entries, (H, H)."""
    centred = (_softmax_maps(q, k) - 1 / k.shape[-2]).flatten(2)  # (B, H, nN)
    return (centred @ centred.transpose(1, 2)).sum(0)


def _softmax_maps(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T) (B, H, n, N), at least in float32."""
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1, dtype=full_precision(scores.dtype))


def _blocks(q: Tensor) -> list[slice]:
    batch, heads, tokens, _ = q.shape
    budget = _BLOCK_BYTES.get(q.device.type, _BLOCK_BYTES_ELSEWHERE)
    row = batch * heads * tokens * full_precision(q.dtype).itemsize
    step = max(1, budget // row)
    return [slice(start, start + step) for start in range(0, tokens, step)]


def _again(function: Callable[..., Tensor], *arguments) -> Tensor:
    """`function` of the arguments, computed again in the backward instead of saved."""
    if torch.is_grad_enabled():
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return function(*arguments)
