"""Re-attention in blocks of queries, without the attention maps of all heads.

The published layer stores maps (B, H, N, N) after the softmax, the mixing and the norm. Mixing is a
matrix over the heads, and a batch norm with known statistics scales and shifts each head. Together
they are one matrix (H, H) and one constant per head, so each block of queries can go from the
softmax to the weighted sum on its own.

In training, a first pass over the blocks computes the batch statistics, and the backward pass
computes each block again. Time compared with the maps of all heads, at width 384 with 12 heads and
the 1025 tokens of a 512x512 crop (docs/deepvit.md):

    batch 2: inference 412.1 to 61.5 ms, a training step 1348.8 to 676.0 ms
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.programs import is_recorded, recomputed
from mmseg_ext.layers.submodules import computes_by_weights, update_running_statistics

# With gradients, blocks are computed again in the backward pass. This measured faster than keeping
# the maps at 1025 tokens, and slower at 197.
_RECOMPUTED_TOKENS = 512

# Bytes of the maps of one block. On a CPU they should stay in the last-level cache: 4 MiB measured
# best of 0.5 to 16 MiB for 197 to 1025 tokens. On other devices the block only limits the memory.
_BLOCK_BYTES_CPU = 4 * 2**20
_BLOCK_BYTES = 256 * 2**20


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
    """Return weighted values (B, N, H, d) for queries, keys and values (H, B, N, d).

    The softmax maps are multiplied by `token_ratio`, then by `mixing` across the heads, then
    normalized by `norm`.
    """
    matrix = mixing.weight.flatten(1).to(full_precision(q.dtype)) * token_ratio  # (H, H)
    with autocast_disabled(q):  # mixing and batch norm become one matrix (H, H) and a constant (H)
        bias, dtype = mixing.bias, matrix.dtype
        assert bias is not None
        bias = bias.to(dtype)
        if norm.training or norm.running_mean is None or norm.running_var is None:
            mean, variance = _batch_statistics(norm, q, k, matrix, bias)
        else:
            mean, variance = norm.running_mean.to(dtype), norm.running_var.to(dtype)
        gain = norm.weight.to(dtype) * (variance + norm.eps).rsqrt()  # (H)
        matrix, constant = matrix * gain[:, None], norm.bias.to(dtype) + gain * (bias - mean)
    parts = [recomputed(_block, block, k, v, matrix, constant) for block in _blocks(q)]
    return torch.cat(parts, 1)


def _block(q: Tensor, k: Tensor, v: Tensor, matrix: Tensor, constant: Tensor) -> Tensor:
    """Return the values (B, n, H, d) weighted by matrix @ softmax(q k^T) + constant.

    The matrix (H, H) multiplies the heads, so maps of all images are one matrix (H, B n N).
    """
    maps = _softmax_maps(q, k)  # (H, B, n, N)
    with autocast_disabled(maps):
        mixed = _Mixing.apply(matrix, constant, maps)
    return (mixed.to(v.dtype) @ v).permute(1, 2, 0, 3)


def _batch_statistics(
    norm: _BatchNorm, q: Tensor, k: Tensor, matrix: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance (H) of the mixed maps, and update the running statistics."""
    _, batch, tokens, _ = q.shape
    count = batch * tokens * tokens
    # Rows of a softmax sum to one, so each map has exactly the mean 1/N. With M the matrix and S
    # the covariance of the heads' maps, the mixed maps have the mean M 1/N + bias and the variance
    # diag(M S M^T). The mixed maps themselves are not needed.
    parts = [_CenteredProducts.apply(block, k) for block in _blocks(q)]
    covariance = torch.cat(parts).sum(0) / count  # (H, H)
    mean = matrix.sum(1) / tokens + bias  # (H)
    variance = ((matrix @ covariance) * matrix).sum(1)  # (H)
    if norm.running_mean is not None:
        update_running_statistics(norm, mean, variance, count)
    return mean, variance


def products_of_maps(a: Tensor, b: Tensor) -> Tensor:
    """Return products of all heads of two maps (H, B, n, N), in parts (P, H, H) of a sum.

    On a GPU each row of the maps is a part. One product of (H, B n N) and (B n N, H) has few
    results, so it would run on a fraction of the GPU.
    """
    if a.device.type == "cpu":
        return (a.flatten(1) @ b.flatten(1).t())[None]
    a = a.flatten(1, 2).transpose(0, 1)  # (B n, H, N)
    b = b.flatten(1, 2).transpose(0, 1)  # (B n, H, N)
    return a @ b.transpose(1, 2)


class _CenteredProducts(torch.autograd.Function):
    """Products of the heads' maps minus their mean 1/N, as `products_of_maps`.

    Its backward pass computes the maps again, but not the products.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        centered = _softmax_maps(q, k) - 1 / k.shape[-2]
        return products_of_maps(centered, centered)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        q, k = ctx.saved_tensors
        maps = _softmax_maps(q, k)
        # The parts are summed, so their gradients are equal.
        gradient = gradients[0][0]  # (H, H)
        # The mean adds the same number to all entries of a row, which a softmax ignores.
        of_maps = ((gradient + gradient.t()) @ maps.flatten(1)).view_as(maps)
        of_scores = torch._softmax_backward_data(of_maps, maps, -1, maps.dtype).to(q.dtype)
        return of_scores @ k, of_scores.transpose(-2, -1) @ q


class _Mixing(torch.autograd.Function):
    """matrix @ maps + constant for maps (H, B, n, N), with `products_of_maps` in the gradient."""

    @staticmethod
    def forward(ctx, matrix: Tensor, constant: Tensor, maps: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, maps)
        return torch.addmm(constant[:, None], matrix, maps.flatten(1)).view_as(maps)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        matrix, maps = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_maps = (matrix.t() @ gradient.flatten(1)).view_as(maps)
        of_matrix = products_of_maps(gradient, maps).sum(0)
        return of_matrix, gradient.flatten(1).sum(1), of_maps


def _softmax_maps(q: Tensor, k: Tensor) -> Tensor:
    """Return softmax(q k^T) (H, B, n, N), in float32 at least."""
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1, dtype=full_precision(scores.dtype))


def _blocks(q: Tensor) -> Sequence[Tensor]:
    """Split queries (H, B, N, d) into blocks (H, B, n, d)."""
    heads, batch, tokens, _ = q.shape
    budget = _BLOCK_BYTES_CPU if q.device.type == "cpu" else _BLOCK_BYTES
    row = batch * heads * tokens * full_precision(q.dtype).itemsize
    return q.split(max(1, budget // row), dim=2)
