"""`ExternalAttention2d.published_order` with adjacent linear maps multiplied into one map.

The 1x1 convolution and the keys are adjacent, and so are the values and the second convolution.
Each pair is one C x S map. In training, the statistics of batch norm follow from the mean and
covariance of the S attention rows, so the (C, N) tensor is not needed. Time compared with the
published order at 512 channels (docs/external_attention.md; crops have 64 x 64 to 97 x 97):

    64 x 64 positions: inference 82.1 to 16.8 ms, a training step 308.2 to 59.9 ms
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.precision import autocast_disabled, compute_dtype, full_precision
from mmseg_ext.layers.submodules import computes_by_weights, update_running_statistics
from mmseg_ext.torch_versions import is_compiling


def should_use(layer: Any, x: Tensor) -> bool:
    """Check if composed maps are possible and faster for x (B, C, H, W)."""
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    # Composing pays off from S + 1 pixels on a CPU; on a GPU it takes up to 1.8 times as long
    # (docs/gpu.md). Compiled programs for CPUs always compose, because a second one for small maps
    # would be compiled otherwise.
    pays_off = not x.is_cuda and (is_compiling() or pixels > layer.memory_size)
    return pays_off and is_possible(layer)


def is_possible(layer: Any) -> bool:
    """Check if only weights determine the results of the submodules before the norm."""
    memories = (layer.linear_0,) if layer.tied else (layer.linear_0, layer.linear_1)
    return computes_by_weights(layer.conv1, layer.conv2, layer.conv2[0], *memories)


def attend(layer: Any, x: Tensor) -> Tensor:
    """Compute `layer.published_order(x)` for x (B, C, H, W)."""
    dtype = compute_dtype(x)
    with autocast_disabled(x):
        # M_k W_1 (S, C), M_k b_1 (S,) and W_2 M_v (C, S), in float32 at least. `flatten` instead of
        # an index, whose backward pass would fill a tensor with zeros.
        of_weights = full_precision(layer.conv1.weight.dtype)
        first = layer.conv1.weight.flatten(1).to(of_weights)  # (C, C)
        last = layer.conv2[0].weight.flatten(1).to(of_weights)  # (C, C)
        keys = layer.linear_0.weight.flatten(1).to(of_weights)  # (S, C)
        if layer.tied:
            values = keys.t()  # (C, S)
        else:
            values = layer.linear_1.weight.flatten(1).to(of_weights)  # (C, S)
        key_bias, values = keys @ layer.conv1.bias.to(of_weights), last @ values
        keys = keys @ first

        pixels = x.flatten(2).to(dtype)  # (B, C, N)
        keys = keys.to(dtype).expand(x.shape[0], -1, -1)  # (B, S, C)
        # A softmax over positions removes key_bias. It is added because its parameter needs a
        # gradient: DDP stops on unused parameters.
        logits = torch.baddbmm(key_bias.to(dtype)[:, None], keys, pixels)  # (B, S, N)
        attention = layer.normalize(logits.to(full_precision(dtype)))  # (B, S, N)
        norm = layer.conv2[1]
        values, shift = _absorb_norm(values.to(attention.dtype), norm, attention)
        values = values.to(dtype).expand(x.shape[0], -1, -1)  # (B, C, S)
        attention = attention.to(dtype)
        if shift is None:
            y = torch.bmm(values, attention).unflatten(2, x.shape[2:])  # (B, C, H, W)
            return F.relu(x + norm(y))
        shift = shift.to(dtype)
        # A float32 input under autocast is added unchanged. The next convolution of a compiled
        # program must not get a view: with symbolic sizes inductor (2.13) would fail with "cannot
        # determine truth value of Relational" (pytorch/pytorch#185510).
        if x.dtype != dtype or is_compiling():
            y = torch.baddbmm(shift[:, None], values, attention)  # (B, C, N)
            return F.relu(x + y.unflatten(2, x.shape[2:]))
        # All in one tensor that has the size and memory format of x.
        if dtype.itemsize < 4 and not pixels.is_contiguous():
            # Into (B, C, N) with the strides of channels last, PyTorch multiplies bfloat16 without
            # oneDNN, which takes 900 times as long. For float32 this order is the slower one.
            out = pixels.mT + shift  # (B, N, C)
            out = out.baddbmm_(attention.mT, values.mT).relu_().mT  # (B, C, N)
        else:
            out = (pixels + shift[:, None]).baddbmm_(values, attention).relu_()  # (B, C, N)
        return out.unflatten(2, x.shape[2:])


def _absorb_norm(
    values: Tensor, norm: nn.Module, attention: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return values (C, S) times the scale of a batch norm, and its shift (C,).

    For a norm that has to be called the values are returned unchanged and the shift is None.
    """
    if not (isinstance(norm, _BatchNorm) and computes_by_weights(norm)):
        return values, None
    mean, variance = norm.running_mean, norm.running_var
    if norm.training or mean is None or variance is None:
        if norm.training and isinstance(norm, nn.SyncBatchNorm):
            return values, None  # its statistics are those of all processes
        # For y = V a the batch mean is V mean(a) and the variance is diag(V cov(a) V^T).
        count = attention.shape[0] * attention.shape[2]
        slot_mean = attention.mean(dim=(0, 2))  # (S,)
        centered = attention - slot_mean[:, None]  # (B, S, N)
        covariance = torch.bmm(centered, centered.transpose(1, 2)).sum(0) / count  # (S, S)
        mean = values @ slot_mean  # (C,)
        variance = ((values @ covariance) * values).sum(1)  # (C,)
        if norm.training and norm.running_mean is not None:
            update_running_statistics(norm, mean, variance, count)
    scale = torch.rsqrt(variance.to(values.dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean.to(values.dtype) * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    return values * scale[:, None], shift
