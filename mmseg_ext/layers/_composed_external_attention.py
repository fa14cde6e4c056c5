"""`ExternalAttention2d.published_order` with its linear maps multiplied where they meet.

The 1x1 convolution and the keys have nothing between them, nor have the values and the second
convolution: each pair is one map of C x S. In training, batch norm's statistics come from the mean
and covariance of the S attention rows, of which the normalised map is a linear image, not from the
(C, N) tensor itself. At 512 x 128 x 128 on a CPU this was 7.6 times faster in inference and 5.6
times in training (docs/benchmarks/external_attention.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.batch_statistics import update_running_statistics
from mmseg_ext.layers.composable import computes_by_weights
from mmseg_ext.layers.precision import autocast_disabled, compute_dtype, full_precision
from mmseg_ext.layers.shapes import require_map

if TYPE_CHECKING:
    from mmseg_ext.layers.external_attention import ExternalAttention2d

Normalize = Callable[[Tensor], Tensor]


def _composable(block: ExternalAttention2d) -> bool:
    """Whether the weights alone say what the submodules compute; the norm's are used if they do."""
    convolutions = [block.conv1, block.linear_0, block.conv2, block.conv2[0]]
    if not block.tied:
        convolutions.append(block.linear_1)
    return computes_by_weights(*convolutions)


def should_use(block: ExternalAttention2d, x: Tensor) -> bool:
    """Whether composing is right, and costs less than it saves: from S + 1 pixels on."""
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    # A compiled program would be made anew for small maps.
    return _composable(block) and (torch.compiler.is_compiling() or pixels > block.memory_size)


def forward(block: ExternalAttention2d, x: Tensor) -> Tensor:
    """x (B, C, H, W) to the same."""
    dtype = compute_dtype(x)
    with autocast_disabled(x):
        keys, key_bias = (weight.to(dtype) for weight in _keys(block))
        pixels = x.flatten(2).to(dtype)  # (B, C, N)
        # Softmax over positions cancels key_bias; it stays so that its parameter is used.
        attention = _attention(pixels, keys, key_bias, block.normalize)  # (B, S, N)
        values, shift = _normed_values(block, attention)
        norm = block.conv2[1] if shift is None else None
        return _output(x, pixels, values, attention.to(dtype), shift, norm)


def _attention(pixels: Tensor, keys: Tensor, bias: Tensor | None, normalize: Normalize) -> Tensor:
    """Attention (B, S, N) of pixels (B, C, N) to keys (S, C), in float32 at least."""
    keys = keys.expand(pixels.shape[0], -1, -1)  # (B, S, C)
    if bias is None:
        logits = torch.bmm(keys, pixels)
    else:
        logits = torch.baddbmm(bias[:, None], keys, pixels)
    return normalize(logits.to(full_precision(logits.dtype)))


def _output(
    x: Tensor,
    pixels: Tensor,
    values: Tensor,
    attention: Tensor,
    shift: Tensor | None,
    norm: nn.Module | None,
) -> Tensor:
    """relu(x + values @ attention + shift), (B, C, H, W), or with a norm in place of the shift."""
    values = values.to(pixels.dtype).expand(x.shape[0], -1, -1)  # (B, C, S)
    if norm is not None:
        y = torch.bmm(values, attention).unflatten(2, x.shape[2:])  # (B, C, H, W)
        return F.relu(norm(y) + x.to(y.dtype))
    # In one tensor of x's size and memory format.
    out = pixels + shift.to(pixels.dtype)[:, None]  # (B, C, N)
    out = out.baddbmm_(values, attention)
    if torch.compiler.is_compiling():
        # The next convolution must not get a view: for any size, inductor (2.13) then ends in
        # "cannot determine truth value of Relational" (pytorch/pytorch#185510).
        return F.relu(out.unflatten(2, x.shape[2:]))
    return out.relu_().unflatten(2, x.shape[2:])


def _keys(block: ExternalAttention2d) -> tuple[Tensor, Tensor]:
    """M_k W_1 (S, C) and M_k b_1 (S,), in float32 at least."""
    dtype = full_precision(block.conv1.weight.dtype)
    # Flattened, not indexed: the backward of an index fills a tensor of zeros.
    memory = block.linear_0.weight.flatten(1).to(dtype)  # (S, C)
    return memory @ block.conv1.weight.flatten(1).to(dtype), memory @ block.conv1.bias.to(dtype)


def _values(block: ExternalAttention2d) -> Tensor:
    """W_2 M_v (C, S), in float32 at least, before the norm."""
    weight = block.conv2[0].weight.flatten(1)  # (C, C)
    memory = (
        block.linear_0.weight.flatten(1).t() if block.tied else block.linear_1.weight.flatten(1)
    )
    dtype = full_precision(weight.dtype)
    return weight.to(dtype) @ memory.to(dtype)


def _normed_values(block: ExternalAttention2d, attention: Tensor) -> tuple[Tensor, Tensor | None]:
    """The values and, where the norm is a batch norm, its shift (C,), with its scale in the values.

    With y = V a the batch mean is V mean(a) and the variance diag(V cov(a) V^T): S rows of
    statistics instead of C, and no pass over the (C, N) tensor.
    """
    values, norm = _values(block), block.conv2[1]
    if not _is_plain_batch_norm(norm):
        return values, None
    if not (norm.training or norm.running_mean is None):
        return _fold(norm, values, norm.running_mean, norm.running_var)
    if isinstance(norm, nn.SyncBatchNorm):
        return values, None  # its statistics are the whole group's
    slot_mean = attention.mean(dim=(0, 2))  # (S,)
    centred = attention - slot_mean[:, None]  # (B, S, N)
    count = attention.shape[0] * attention.shape[2]
    covariance = torch.bmm(centred, centred.transpose(1, 2)).sum(0) / count  # (S, S)
    mean = values @ slot_mean  # (C,)
    variance = ((values @ covariance) * values).sum(1)  # (C,)
    if norm.training and norm.running_mean is not None:
        update_running_statistics(norm, mean, variance, count)
    return _fold(norm, values, mean, variance)


def _is_plain_batch_norm(norm: nn.Module) -> bool:
    return isinstance(norm, _BatchNorm) and computes_by_weights(norm)


def _fold(
    norm: _BatchNorm, values: Tensor, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Values (C, S) scaled and the shift (C,) of a batch norm with these statistics."""
    scale = torch.rsqrt(variance.to(values.dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean.to(values.dtype) * scale
    return values * scale[:, None], shift if norm.bias is None else shift + norm.bias


def fuse(block: ExternalAttention2d, normalize: Normalize) -> nn.Module:
    """The inference form of `block`; a copy where composing would leave something out."""
    if not _composable(block):
        return copy.deepcopy(block).eval()
    return FusedExternalAttention2d(block, normalize)


class FusedExternalAttention2d(nn.Module):
    """Inference form of `ExternalAttention2d`: relu(x + V normalise(K x) + shift).

    The key bias is dropped where the softmax runs over positions, which cancels it.
    """

    def __init__(self, block: ExternalAttention2d, normalize: Normalize):
        super().__init__()
        self.channels = block.channels
        self.normalize = normalize
        dtype = block.conv1.weight.dtype
        with torch.no_grad():
            keys, key_bias = _keys(block)
            values, norm, shift = _values(block), block.conv2[1], None
            if _is_plain_batch_norm(norm) and norm.running_mean is not None:
                values, shift = _fold(norm, values, norm.running_mean, norm.running_var)
        self.norm = norm if shift is None else None
        tensors = {"keys": keys, "key_bias": key_bias, "values": values, "shift": shift}
        if block.normalization == "double":
            tensors["key_bias"] = None
        for name, tensor in tensors.items():
            self.register_buffer(name, None if tensor is None else tensor.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) to the same."""
        require_map(x, self.channels)
        dtype = compute_dtype(x)
        with autocast_disabled(x):
            pixels = x.flatten(2).to(dtype)  # (B, C, N)
            bias = None if self.key_bias is None else self.key_bias.to(dtype)
            attention = _attention(pixels, self.keys.to(dtype), bias, self.normalize).to(dtype)
            return _output(x, pixels, self.values, attention, self.shift, self.norm)
