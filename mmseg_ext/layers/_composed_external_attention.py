"""`ExternalAttention2d.published_order` with its linear maps multiplied where they meet.

The 1x1 convolution and the keys have nothing between them, nor have the values and the second
convolution: each pair is one map of C x S. In training, batch norm's statistics come from the mean
and covariance of the S attention rows, of which the normalised map is a linear image, not from the
(C, N) tensor itself. At 512 channels, against the published order (docs/benchmarks/
external_attention.md; the configs' crops give maps of 64 x 64 to 97 x 97):

    64 x 64 positions: inference 56.06 to 7.77 ms, a training step 95.85 to 22.58 ms
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.precision import autocast_disabled, compute_dtype, full_precision
from mmseg_ext.layers.shapes import require_map
from mmseg_ext.layers.submodules import computes_by_weights, update_running_statistics

Normalize = Callable[[Tensor], Tensor]


def compose_keys(memory: Tensor, conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """M_k W_1 (S, C) and M_k b_1 (S,) of a memory (S, C), in float32 at least."""
    dtype = full_precision(conv.weight.dtype)
    memory = memory.to(dtype)
    return memory @ conv.weight.flatten(1).to(dtype), memory @ conv.bias.to(dtype)


def compose_values(memory: Tensor, conv: nn.Conv2d) -> Tensor:
    """W_2 M_v (C, S) of a memory (C, S), in float32 at least, before the norm."""
    dtype = full_precision(conv.weight.dtype)
    return conv.weight.flatten(1).to(dtype) @ memory.to(dtype)


def composed_attention(
    x: Tensor,
    keys: Tensor,
    key_bias: Tensor,
    values: Tensor,
    norm: nn.Module,
    normalize: Normalize,
) -> Tensor:
    """x (B, C, H, W) to the same, by composed keys (S, C) with a bias (S,) and values (C, S)."""
    dtype = compute_dtype(x)
    with autocast_disabled(x):
        pixels = x.flatten(2).to(dtype)  # (B, C, N)
        # Softmax over positions cancels key_bias; it stays so that its parameter is used.
        attention = _attention(pixels, keys.to(dtype), key_bias.to(dtype), normalize)  # (B, S, N)
        values, shift = _absorb_norm(values, norm, attention)
        norm = norm if shift is None else None
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
        # The next convolution must not get a view: for any size, inductor (2.13) then fails with
        # "cannot determine truth value of Relational" (pytorch/pytorch#185510).
        return F.relu(out.unflatten(2, x.shape[2:]))
    return out.relu_().unflatten(2, x.shape[2:])


def _absorb_norm(
    values: Tensor, norm: nn.Module, attention: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Values (C, S) times a batch norm's scale, and its shift (C,); None for any other norm.

    With y = V a the batch mean is V mean(a) and the variance diag(V cov(a) V^T): S rows of
    statistics instead of C, and no pass over the (C, N) tensor.
    """
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


class FusedExternalAttention2d(nn.Module):
    """Inference form of `ExternalAttention2d`: relu(x + V normalise(K x) + shift).

    Takes what `composed_attention` takes; `key_bias` is None where the softmax runs over positions,
    which cancels it. The weights are stored in `dtype`.
    """

    @torch.no_grad()
    def __init__(
        self,
        keys: Tensor,
        key_bias: Tensor | None,
        values: Tensor,
        norm: nn.Module,
        normalize: Normalize,
        dtype: torch.dtype,
    ):
        super().__init__()
        self.channels = keys.shape[1]
        self.normalize = normalize
        shift = None
        if _is_plain_batch_norm(norm) and norm.running_mean is not None:
            values, shift = _fold(norm, values, norm.running_mean, norm.running_var)
        self.norm = norm if shift is None else None
        tensors = {"keys": keys, "key_bias": key_bias, "values": values, "shift": shift}
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
