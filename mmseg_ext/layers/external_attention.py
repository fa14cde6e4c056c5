"""External attention: attention to a small learned memory that all samples share.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet, `model_torch.py` (`External_attention`) and, for tokens,
`multi_head_attention_torch.py` (`Attention`).

Deviations from the published code:
- The computation is composed: the 1x1 convolution and the keys are two linear maps with nothing
  between them, and so are the values and the second 1x1 convolution, so each pair is multiplied
  once and applied to the pixels as one map. The state dict keeps the published layout.
- Batch norm's statistics in training come from the mean and covariance of the S attention rows,
  of which the normalised map is a linear image, not from the (C, N) tensor itself.
- The two memories are separate parameters that start equal. The published module ties their
  storage on the CPU by accident and separates it on a GPU, where its weights were trained.
"""

import copy
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext.layers.batch_statistics import update_running_statistics
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
        # Flattened, not indexed: the backward of an index fills a tensor of zeros.
        memory = self.linear_0.weight.flatten(1).to(dtype)  # S, C
        return memory @ self.conv1.weight.flatten(1).to(dtype), memory @ self.conv1.bias.to(dtype)

    def composed_values(self) -> Tensor:
        """W_2 M_v (C, S), in float32 at least, before the norm."""
        weight = self.conv2[0].weight
        dtype = full_precision(weight.dtype)
        if self.tied:
            memory = self.linear_0.weight.flatten(1).t()  # C, S
        else:
            memory = self.linear_1.weight.flatten(1)  # C, S
        return weight.flatten(1).to(dtype) @ memory.to(dtype)

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
                update_running_statistics(norm, mean, variance, count)
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


_TINY = torch.finfo(torch.float32).tiny


class _DoubleNormalizeTokens(torch.autograd.Function):
    """Softmax over the tokens, then L1 over the slots, of logits (B, N, ..., S).

    The result and the L1 sums are all that the backward needs: autograd would keep the softmax too.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, eps: float) -> Tensor:
        attention = logits.softmax(1)
        total = attention.sum(-1, keepdim=True).add_(eps)
        attention.div_(total)
        ctx.save_for_backward(attention, total)
        return attention

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        attention, total = ctx.saved_tensors
        inner = (grad * attention).sum(-1, keepdim=True)
        weighted = (grad - inner).mul_(attention)
        column = weighted.sum(1, keepdim=True)
        return weighted.sub_((attention * total).mul_(column)), None


def double_normalize_tokens(logits: Tensor, eps: float = _EPS) -> Tensor:
    """Softmax over the tokens, then L1 over the slots, of logits (B, N, ..., S); equation 10-11.

    The result is float32, or float64 for float64 logits.
    """
    return _DoubleNormalizeTokens.apply(logits.to(full_precision(logits.dtype)), eps)


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")


def _require_tokens(x: Tensor, embed_dim: int) -> None:
    if x.ndim != 3 or x.shape[-1] != embed_dim:
        raise ValueError(f"x must be (B, N, {embed_dim}), got {tuple(x.shape)}")


class ExternalAttention(nn.Module):
    """External attention in its barest form: two linear memories and the double normalization.

    Equations 7, 8, 10 and 11 of the paper and nothing else; the form most often copied, whose names
    and initialization it keeps. `ExternalAttention2d`, the block of the published segmentation
    model, has the same two memories between 1x1 convolutions, with batch norm, a residual and a
    ReLU; `MultiHeadExternalAttention` widens the tokens and shares small memories with biases among
    heads. This module has none of these and loads neither's weights.

    Args:
        embed_dim: C, the width of a token.
        memory_size: S, the number of slots of either memory.
    """

    def __init__(self, embed_dim: int, memory_size: int = 64):
        super().__init__()
        _require_positive(embed_dim=embed_dim, memory_size=memory_size)
        self.embed_dim = embed_dim
        self.mk = nn.Linear(embed_dim, memory_size, bias=False)
        self.mv = nn.Linear(memory_size, embed_dim, bias=False)
        nn.init.normal_(self.mk.weight, std=0.001)
        nn.init.normal_(self.mv.weight, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C) to (B, N, C)."""
        _require_tokens(x, self.embed_dim)
        # The copied form adds no eps. The smallest one keeps 0 / 0 away and changes no other sum.
        attention = double_normalize_tokens(self.mk(x), _TINY)  # (B, N, S)
        return self.mv(attention)


class _FusedMultiHeadExternalAttention(nn.Module):
    """Inference form of `MultiHeadExternalAttention`: two linear maps and the normalization."""

    def __init__(self, embed_dim: int, groups: int, memory_size: int):
        super().__init__()
        self.embed_dim = embed_dim
        self.groups = groups
        # The bias of the logits is the same for all tokens: the softmax over them removes it.
        self.keys = nn.Linear(embed_dim, groups * memory_size, bias=False)
        self.values = nn.Linear(groups * memory_size, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        _require_tokens(x, self.embed_dim)
        logits = self.keys(x).unflatten(-1, (self.groups, -1))  # (B, N, G, S)
        return self.values(double_normalize_tokens(logits).flatten(2))  # (B, N, C)


class MultiHeadExternalAttention(nn.Module):
    """Multi-head external attention on tokens (paper, section 3.3; the attention of EAMLP).

    Tokens are widened from C to `expansion` C and split into G = `expansion` x `num_heads` groups
    of width C / `num_heads`. Each group attends to the same two memories of S slots; unlike in the
    single-head block these have biases. The published code widens four times and has 256 / 4 = 64
    slots.

    The widening meets the keys with nothing between them, and the values meet the projection:
    where that costs fewer multiply-adds, either pair is applied as one linear map composed from
    the same parameters (gradients flow to these, and checkpoints keep the published layout). The
    biases before the softmax over tokens have no effect and zero gradient.

    Args:
        embed_dim: C, a multiple of `num_heads`.
        expansion: factor by which the tokens are widened; it also multiplies the heads.
        memory_size: S, the slots of the memories that all groups share.
        attn_drop: dropout of the normalized attention.
        proj_drop: dropout of the output.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        expansion: int = 4,
        memory_size: int = 64,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        _require_positive(
            embed_dim=embed_dim, num_heads=num_heads, expansion=expansion, memory_size=memory_size
        )
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}")
        self.embed_dim = embed_dim
        self.groups = num_heads * expansion
        self.memory_size = memory_size
        head_dim = embed_dim // num_heads
        self.trans_dims = nn.Linear(embed_dim, embed_dim * expansion)
        self.linear_0 = nn.Linear(head_dim, memory_size)
        self.linear_1 = nn.Linear(memory_size, head_dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(embed_dim * expansion, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C) to (B, N, C)."""
        _require_tokens(x, self.embed_dim)
        if self._composing_pays(x.shape[0] * x.shape[1]):
            key_weight, key_bias, value_weight, value_bias = self._composed()
            attention = self._attend(F.linear(x, key_weight, key_bias))  # (B, N, G, S)
            return self.proj_drop(F.linear(attention.flatten(2), value_weight, value_bias))
        wide = self.trans_dims(x).unflatten(-1, (self.groups, -1))  # (B, N, G, C / heads)
        attention = self._attend(self.linear_0(wide).flatten(2))  # (B, N, G, S)
        return self.proj_drop(self.proj(self.linear_1(attention).flatten(2)))

    def _attend(self, logits: Tensor) -> Tensor:
        logits = logits.unflatten(-1, (self.groups, -1))  # (B, N, G, S)
        return self.attn_drop(double_normalize_tokens(logits, _EPS))

    def _saved_by_composing(self) -> int:
        """Multiply-adds per token and pair of maps that one composed map saves; may be negative."""
        wide, slots = self.proj.in_features, self.groups * self.memory_size
        return wide * (self.embed_dim + self.memory_size) - slots * self.embed_dim

    def _composing_pays(self, tokens: int) -> bool:
        cost = self.proj.in_features * self.memory_size * self.embed_dim
        return tokens * self._saved_by_composing() > cost

    def _composed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight and bias from tokens to logits, and from attention to the output."""
        shape = (self.groups, -1)
        dtype = full_precision(self.proj.weight.dtype)
        with autocast_disabled(self.proj.weight):
            widen = self.trans_dims.weight.to(dtype).unflatten(0, shape)  # (G, C / heads, C)
            widen_bias = self.trans_dims.bias.to(dtype).unflatten(0, shape)  # (G, C / heads)
            narrow = self.proj.weight.to(dtype).unflatten(1, shape)  # (C, G, C / heads)
            keys, values = self.linear_0.weight.to(dtype), self.linear_1.weight.to(dtype)
            key_weight = (keys @ widen).flatten(0, 1)  # (G * S, C)
            key_bias = (widen_bias @ keys.t() + self.linear_0.bias).flatten()  # (G * S,)
            value_weight = (narrow @ values).flatten(1)  # (C, G * S)
            value_bias = self.proj.bias + narrow.sum(1) @ self.linear_1.bias.to(dtype)  # (C,)
        dtype = self.proj.weight.dtype
        return tuple(t.to(dtype) for t in (key_weight, key_bias, value_weight, value_bias))

    @torch.no_grad()
    def fuse(self) -> nn.Module:
        """The inference form, with the maps composed once.

        Where composed maps cost more than the published order, as with memories wider than the
        heads, it is a copy of this module.
        """
        if self._saved_by_composing() <= 0:
            return copy.deepcopy(self).eval()
        key_weight, _, value_weight, value_bias = self._composed()
        fused = _FusedMultiHeadExternalAttention(self.embed_dim, self.groups, self.memory_size)
        fused.to(key_weight)
        fused.keys.weight.copy_(key_weight)
        fused.values.weight.copy_(value_weight)
        fused.values.bias.copy_(value_bias)
        return fused.eval()
