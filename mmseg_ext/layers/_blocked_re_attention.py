"""Re-attention in blocks of queries, without the attention maps of all heads.

Each block goes from the softmax to the weighted sum, because mixing and batch norm together are one
matrix over the heads and one constant per head. In training the batch statistics are computed
first, and the backward pass computes each block again. Time compared with the maps of all heads, at
width 384 with 12 heads and the 1025 tokens of a 512x512 crop (docs/deepvit.md):

    batch 2: inference 412.1 to 61.5 ms, a training step 1348.8 to 676.0 ms
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.programs import is_recorded, recomputed
from mmseg_ext.layers.submodules import computes_by_weights, update_running_statistics

# With gradients, blocks are computed again in the backward pass. This measured faster than keeping
# the maps at 1025 tokens, and slower at 197.
_RECOMPUTED_TOKENS = 512


def should_use(x: Tensor, drop: nn.Dropout, mixing: nn.Conv2d, norm: nn.Module) -> bool:
    """Check if blocks are correct and faster for tokens x (B, N, C)."""
    if is_recorded():
        return False  # a program contains a fixed number of blocks
    if not computes_by_weights(drop, mixing, norm):
        return False
    # An empty batch has no statistics.
    if x.numel() == 0 or (torch.is_grad_enabled() and x.shape[1] < _RECOMPUTED_TOKENS):
        return False
    # Dropped entries change the mean of the maps. SyncBN has statistics of all processes.
    dropped = drop.training and drop.p > 0
    return not dropped and not (norm.training and isinstance(norm, nn.SyncBatchNorm))


def attend(
    q: Tensor, k: Tensor, v: Tensor, mixing: nn.Conv2d, norm: _BatchNorm, token_ratio: float
) -> Tensor:
    """Return weighted values (B, N, H, d) for queries, keys and values (B, H, N, d).

    The softmax maps are multiplied by `token_ratio`, then by `mixing` across the heads, then
    normalized by `norm`.
    """
    matrix = mixing.weight.flatten(1).to(full_precision(q.dtype)) * token_ratio  # (H, H)
    with autocast_disabled(q):
        affine = _affine(matrix, mixing, norm, q, k)
    return torch.cat([recomputed(_block, q[:, :, rows], k, v, *affine) for rows in _blocks(q)], 1)


def _block(q: Tensor, k: Tensor, v: Tensor, matrix: Tensor, constant: Tensor) -> Tensor:
    """Return the values (B, n, H, d) weighted by matrix @ softmax(q k^T) + constant."""
    maps = _softmax_maps(q, k)  # (B, H, n, N)
    with autocast_disabled(maps):
        batch, heads = maps.shape[:2]
        addend = constant.expand(batch, heads)[..., None]  # (B, H, 1)
        mixed = torch.baddbmm(addend, matrix.expand(batch, -1, -1), maps.flatten(2))  # (B, H, n N)
    return (mixed.view_as(maps).to(v.dtype) @ v).transpose(1, 2)


def _affine(
    matrix: Tensor, mixing: nn.Conv2d, norm: _BatchNorm, q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mixing and batch norm as a matrix (H, H) and a constant (H)."""
    dtype = matrix.dtype
    assert mixing.bias is not None
    bias = mixing.bias.to(dtype)
    if norm.training or norm.running_mean is None or norm.running_var is None:
        mean, variance = _batch_statistics(norm, q, k, matrix, bias)
    else:
        mean, variance = norm.running_mean.to(dtype), norm.running_var.to(dtype)
    gain = norm.weight.to(dtype) * (variance + norm.eps).rsqrt()  # (H)
    return matrix * gain[:, None], norm.bias.to(dtype) + gain * (bias - mean)


def _batch_statistics(
    norm: _BatchNorm, q: Tensor, k: Tensor, matrix: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance (H) of the mixed maps, and update the running statistics."""
    batch, _, tokens, _ = q.shape
    count = batch * tokens * tokens
    # Rows of a softmax sum to one, so each map has exactly the mean 1/N. With M the matrix and S
    # the covariance of the heads' maps, the mixed maps have the mean M 1/N + bias and the variance
    # diag(M S M^T). The mixed maps themselves are not needed.
    sums = [recomputed(_centered_products, q[:, :, rows], k) for rows in _blocks(q)]
    covariance = torch.stack(sums).sum(0) / count  # (H, H)
    mean = matrix.sum(1) / tokens + bias  # (H)
    variance = ((matrix @ covariance) * matrix).sum(1)  # (H)
    if norm.running_mean is not None:
        update_running_statistics(norm, mean, variance, count)
    return mean, variance


def _centered_products(q: Tensor, k: Tensor) -> Tensor:
    """Return the products of the heads' maps minus their mean 1/N, summed over entries, (H, H)."""
    centered = (_softmax_maps(q, k) - 1 / k.shape[-2]).flatten(2)  # (B, H, nN)
    return (centered @ centered.transpose(1, 2)).sum(0)


def _softmax_maps(q: Tensor, k: Tensor) -> Tensor:
    """Return softmax(q k^T) (B, H, n, N), in float32 at least."""
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1, dtype=full_precision(scores.dtype))


def _blocks(q: Tensor) -> list[slice]:
    batch, heads, tokens, _ = q.shape
    # On a CPU the maps of one block should stay in the last-level cache: 4 MiB measured best of 0.5
    # to 16 MiB for 197 to 1025 tokens. On other devices the block only limits the memory.
    budget = 2**20 * (4 if q.device.type == "cpu" else 256)
    row = batch * heads * tokens * full_precision(q.dtype).itemsize
    step = max(1, budget // row)
    return [slice(start, start + step) for start in range(0, tokens, step)]
