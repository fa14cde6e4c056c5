"""External attention: attention to a small learned memory that all samples share.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet, `model_torch.py` (`External_attention`).

Deviations from the published code:
- The computation is composed: the 1x1 convolution and the keys are two linear maps with nothing
  between them, and so are the values and the second 1x1 convolution, so each pair is multiplied
  once and applied to the pixels as one map. The state dict keeps the published layout.
- Batch norm's statistics in training come from the mean and covariance of the S attention rows,
  of which the normalised map is a linear image, not from the (C, N) tensor itself.
- The two memories are separate parameters that start equal. The published module ties their
  storage on the CPU by accident and separates it on a GPU, where its weights were trained.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.precision import autocast_disabled, compute_dtype, full_precision

Normalization = Literal["double", "softmax"]
_EPS = 1e-9


def double_normalize(logits: Tensor) -> Tensor:
    """Softmax over positions, then L1 over memory slots (paper, Eq. 10-11): (B, S, N) to the same.

    Each slot first distributes one unit over the positions; each position's shares then sum to 1.
    """
    attention = logits.softmax(dim=-1)
    return attention / (_EPS + attention.sum(dim=1, keepdim=True))


def _normalize(logits: Tensor, normalization: Normalization) -> Tensor:
    logits = logits.to(full_precision(logits.dtype))
    return double_normalize(logits) if normalization == "double" else logits.softmax(dim=1)


def _require_image(x: Tensor, channels: int) -> None:
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"x must be (B, {channels}, H, W), got {tuple(x.shape)}")


def _attention(x: Tensor, keys: Tensor, key_bias: Tensor | None, normalization: Normalization):
    """Attention of pixels x (B, C, N) to the slots of keys (S, C): (B, S, N)."""
    keys = keys.expand(x.shape[0], -1, -1)  # B, S, C
    if key_bias is None:
        logits = torch.bmm(keys, x)  # B, S, N
    else:
        logits = torch.baddbmm(key_bias[:, None], keys, x)  # B, S, N
    return _normalize(logits, normalization)


def _residual_product_in_place(x: Tensor, values: Tensor, attention: Tensor, shift: Tensor):
    out = x + shift[:, None]  # B, C, N, in the memory format of x
    return torch.baddbmm(out, values.expand(x.shape[0], -1, -1), attention, out=out).relu_()


class _ResidualProduct(torch.autograd.Function):
    """relu(x + values @ attention + shift) with one tensor of x's size kept, and no other made."""

    @staticmethod
    def forward(ctx, x: Tensor, values: Tensor, attention: Tensor, shift: Tensor) -> Tensor:
        out = _residual_product_in_place(x, values, attention, shift)
        ctx.save_for_backward(out, values, attention)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        out, values, attention = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        grad_values = torch.bmm(grad, attention.transpose(1, 2)).sum(0)
        grad_attention = torch.matmul(values.t(), grad)
        return grad, grad_values, grad_attention, grad.sum((0, 2))


def _residual_product(x: Tensor, values: Tensor, attention: Tensor, shift: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return _ResidualProduct.apply(x, values, attention, shift)
    return _residual_product_in_place(x, values, attention, shift)


class ExternalAttention2d(nn.Module):
    """The published external attention block on feature maps: (B, C, H, W) to the same.

    1x1 convolution with bias, keys M_k, normalisation, values M_v, 1x1 convolution, norm,
    residual, ReLU. With C = 512 and S = 64 it has 591,360 parameters; at 128 x 128 positions the
    published order takes 9.66 G multiply-adds, the composed one used here 1.07 G.

    Args:
        channels: C.
        memory_size: number of memory slots S (the paper's S, `k` in the published code).
        norm_layer: makes the norm after the second convolution from its channel count. With a
            batch norm the whole tail is one product; any other norm is applied as it is.
        normalization: 'double' is Eq. 10-11 (softmax over positions, then L1 over slots);
            'softmax' is a plain softmax over the slots, as self-attention has over its keys: the
            paper's ablation of double normalisation.
        tied: one memory, M_v = M_k^T (Eq. 5-6), instead of two (Eq. 7-8).

    Raises:
        ValueError: for a non-positive `channels` or `memory_size`, an unknown `normalization`,
            and in `forward` for an input that is not (B, channels, H, W).
    """

    def __init__(
        self,
        channels: int,
        memory_size: int = 64,
        norm_layer: Callable[[int], nn.Module] = nn.BatchNorm2d,
        normalization: Normalization = "double",
        tied: bool = False,
    ):
        super().__init__()
        for name, value in (("channels", channels), ("memory_size", memory_size)):
            if value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if normalization not in ("double", "softmax"):
            raise ValueError(f"normalization must be 'double' or 'softmax', got {normalization!r}")
        self.channels = channels
        self.memory_size = memory_size
        self.normalization = normalization
        self.tied = tied
        # Names and shapes of the published state dict.
        self.conv1 = nn.Conv2d(channels, channels, 1)
        self.linear_0 = nn.Conv1d(channels, memory_size, 1, bias=False)
        if not tied:
            self.linear_1 = nn.Conv1d(memory_size, channels, 1, bias=False)
        self.conv2 = nn.Sequential(
            nn.Conv2d(channels, channels, 1, bias=False), norm_layer(channels)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The published initialisation: fan-out normal, and equal memories of std sqrt(2/C)."""
        std = (2 / self.channels) ** 0.5
        nn.init.normal_(self.conv1.weight, std=std)
        nn.init.normal_(self.conv2[0].weight, std=std)
        nn.init.normal_(self.linear_0.weight, std=std)
        if not self.tied:
            with torch.no_grad():
                self.linear_1.weight.copy_(self.linear_0.weight.transpose(0, 1))
        norm = self.conv2[1]
        if isinstance(getattr(norm, "weight", None), nn.Parameter):
            nn.init.ones_(norm.weight)
            nn.init.zeros_(norm.bias)

    def extra_repr(self) -> str:
        return f"normalization={self.normalization!r}, tied={self.tied}"

    def composed_keys(self) -> tuple[Tensor, Tensor]:
        """M_k W_1 (S, C) and M_k b_1 (S,), in float32 at least."""
        dtype = full_precision(self.conv1.weight.dtype)
        memory = self.linear_0.weight[..., 0].to(dtype)  # S, C
        return memory @ self.conv1.weight[..., 0, 0].to(dtype), memory @ self.conv1.bias.to(dtype)

    def composed_values(self) -> Tensor:
        """W_2 M_v (C, S), in float32 at least, before the norm."""
        weight = self.conv2[0].weight
        dtype = full_precision(weight.dtype)
        memory = self.linear_0.weight[..., 0].t() if self.tied else self.linear_1.weight[..., 0]
        return weight[..., 0, 0].to(dtype) @ memory.to(dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Normalised attention of each position to each memory slot: (B, C, H, W) to (B, S, H, W).

        For looking at; `forward` does not keep it.
        """
        _require_image(x, self.channels)
        with autocast_disabled(x):
            keys, bias = self.composed_keys()
            pixels = x.flatten(2).to(keys.dtype)  # B, C, N
            return _attention(pixels, keys, bias, self.normalization).unflatten(2, x.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        _require_image(x, self.channels)
        batch, _, height, width = x.shape
        if not torch.compiler.is_compiling() and batch * height * width <= self.memory_size:
            return self._forward_in_published_order(x)  # composing would cost more than it saves
        dtype = compute_dtype(x)
        with autocast_disabled(x):
            keys, key_bias = (w.to(dtype) for w in self.composed_keys())
            pixels = x.flatten(2).to(dtype)  # B, C, N
            # Softmax over positions cancels key_bias; it stays so that its parameter is used.
            attention = _attention(pixels, keys, key_bias, self.normalization)  # B, S, N
            values = self.composed_values()
            affine = self._norm_as_affine(values, attention)
            attention = attention.to(dtype)
            if affine is None:
                product = torch.matmul(values.to(dtype), attention)  # B, C, N
                product = self.conv2[1](product.unflatten(2, (height, width)))  # B, C, H, W
                return F.relu(product + x.to(dtype))
            scale, shift = affine
            values = (values * scale[:, None]).to(dtype)
            out = _residual_product(pixels, values, attention, shift.to(dtype))  # B, C, N
        return out.unflatten(2, (height, width))  # B, C, H, W

    def _norm_as_affine(self, values: Tensor, attention: Tensor) -> tuple[Tensor, Tensor] | None:
        """Batch norm of `values @ attention` as (scale, shift) per channel; None for other norms.

        With y = V a the batch mean is V mean(a) and the variance diag(V cov(a) V^T): S rows of
        statistics instead of C, and no pass over the (C, N) tensor.
        """
        norm = self.conv2[1]
        if not isinstance(norm, _BatchNorm):
            return None
        batch_statistics = norm.training or norm.running_mean is None
        if batch_statistics and isinstance(norm, nn.SyncBatchNorm):
            return None  # its statistics are the whole group's
        if batch_statistics:
            slot_mean = attention.mean(dim=(0, 2))  # S
            centred = attention - slot_mean[:, None]  # B, S, N
            count = attention.shape[0] * attention.shape[2]
            covariance = torch.bmm(centred, centred.transpose(1, 2)).sum(0) / count  # S, S
            mean = values @ slot_mean  # C
            variance = ((values @ covariance) * values).sum(1)  # C
            if norm.training and norm.running_mean is not None:
                _update_running_statistics(norm, mean, variance, count)
        else:
            mean, variance = norm.running_mean, norm.running_var
        return _affine(norm, mean, variance)

    def _forward_in_published_order(self, x: Tensor) -> Tensor:
        logits = self.linear_0(self.conv1(x).flatten(2))  # B, S, N
        attention = _normalize(logits, self.normalization).to(logits.dtype)  # B, S, N
        if self.tied:
            out = F.conv1d(attention, self.linear_0.weight.transpose(0, 1))  # B, C, N
        else:
            out = self.linear_1(attention)  # B, C, N
        return F.relu(self.conv2(out.unflatten(2, x.shape[2:])) + x)  # B, C, H, W

    def fuse(self) -> nn.Module:
        """The inference form: two products, with batch norm folded into the second.

        A norm that is not a batch norm with running statistics is kept as it is.
        """
        return FusedExternalAttention2d(self)


class FusedExternalAttention2d(nn.Module):
    """Inference form of `ExternalAttention2d`: relu(x + V normalise(K x) + shift).

    The key bias is dropped where the softmax runs over positions, which cancels it.
    """

    def __init__(self, block: ExternalAttention2d):
        super().__init__()
        self.channels = block.channels
        self.normalization = block.normalization
        weight = block.conv1.weight
        with torch.no_grad():
            keys, key_bias = block.composed_keys()
            values = block.composed_values()
            norm = block.conv2[1]
            foldable = isinstance(norm, _BatchNorm) and norm.running_mean is not None
            shift = values.new_zeros(block.channels)
            if foldable:
                scale, shift = _affine(norm, norm.running_mean, norm.running_var)
                values = values * scale[:, None]
        self.norm = None if foldable else norm
        self.register_buffer("keys", keys.to(weight.dtype))
        bias = None if block.normalization == "double" else key_bias.to(weight.dtype)
        self.register_buffer("key_bias", bias)
        self.register_buffer("values", values.to(weight.dtype))
        self.register_buffer("shift", shift.to(weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        _require_image(x, self.channels)
        dtype = compute_dtype(x)
        with autocast_disabled(x):
            pixels = x.flatten(2).to(dtype)  # B, C, N
            key_bias = None if self.key_bias is None else self.key_bias.to(dtype)
            attention = _attention(pixels, self.keys.to(dtype), key_bias, self.normalization)
            attention = attention.to(dtype)  # B, S, N
            values = self.values.to(dtype)
            if self.norm is not None:
                product = torch.matmul(values, attention).unflatten(2, x.shape[2:])  # B, C, H, W
                return F.relu(self.norm(product) + x.to(dtype))
            out = _residual_product(pixels, values, attention, self.shift.to(dtype))  # B, C, N
        return out.unflatten(2, x.shape[2:])  # B, C, H, W


def _affine(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift) of a batch norm with these statistics, in float32 at least."""
    dtype = full_precision(variance.dtype)
    scale = torch.rsqrt(variance.to(dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean.to(dtype) * scale
    return scale, shift if norm.bias is None else shift + norm.bias


@torch.no_grad()
def _update_running_statistics(
    norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int
) -> None:
    """What `F.batch_norm` does to the buffers: the running variance is the unbiased one."""
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    unbiased = variance * (count / (count - 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)
