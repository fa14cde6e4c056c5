"""External attention on maps: attention to a small learned memory that all samples share.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet, `model_torch.py` (`External_attention`).

Deviations from the published code:
- On maps of more than S positions the 1x1 convolution and the keys are multiplied into one map, and
  so are the values and the second convolution (`_composed_external_attention.py`). Results and the
  state dict are the same.
- The two memories are separate parameters that start equal. The published module ties their
  storage on the CPU by accident and separates it on a GPU, where its weights were trained.
"""

import copy
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers._composed_external_attention import (
    FusedExternalAttention2d,
    composed_attention,
)
from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.shapes import require_map
from mmseg_ext.layers.submodules import computes_by_weights

Normalization = Literal["double", "softmax"]

_EPS = 1e-9  # of the published code
# ONNX optimizers take a sum with 1e-9 for a sum with zero. A power of two changes no digit.
_SCALE = 2.0**30


def double_normalize(logits: Tensor, positions: int = -1, slots: int = 1) -> Tensor:
    """Softmax over positions, then L1 over memory slots (paper, Eq. 10-11), in float32 at least.

    Each slot first distributes one unit over the positions; each position's shares then sum to 1.
    `positions` and `slots` are the dimensions of these in `logits`, by default of (B, S, N). The
    result has the shape and dtype of `logits`.
    """
    shares = logits.softmax(positions, dtype=full_precision(logits.dtype))
    total = (_SCALE * shares.sum(slots, keepdim=True) + _SCALE * _EPS) / _SCALE
    return (shares / total).to(logits.dtype)


def slot_softmax(logits: Tensor) -> Tensor:
    """Softmax over the slots of logits (B, S, N), in float32 at least; returned in their dtype."""
    return logits.softmax(1, dtype=full_precision(logits.dtype)).to(logits.dtype)


_NORMALIZATIONS = {"double": double_normalize, "softmax": slot_softmax}


class ExternalAttention2d(nn.Module):
    """The published external attention block on feature maps: (B, C, H, W) to the same.

    1x1 convolution with bias, keys M_k, normalisation, values M_v, 1x1 convolution, norm,
    residual, ReLU. With C = 512 and S = 64 it has 591,360 parameters; at 128 x 128 positions the
    published order takes 9.66 G multiply-adds, the composed one 1.07 G.

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
        ValueError: for an unknown `normalization`, and in `forward` for an input that is not
            (B, channels, H, W).
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
        if normalization not in _NORMALIZATIONS:
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

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) to the same; the result is that of `published_order`."""
        require_map(x, self.channels)
        pixels = x.shape[0] * x.shape[2] * x.shape[3]
        # From S + 1 pixels on composing saves more than it costs. A compiled program would be made
        # anew for small maps.
        many = torch.compiler.is_compiling() or pixels > self.memory_size
        if many and self._is_composable():
            with autocast_disabled(x):
                weights = self._composed_weights()
            return composed_attention(x, *weights, self.conv2[1], self.normalize)
        return self.published_order(x)

    def published_order(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) to the same, one submodule after the other."""
        queries = self.conv1(x).flatten(2)  # (B, C, N)
        attention = self.normalize(self.linear_0(queries))  # (B, S, N)
        if self.tied:
            y = F.conv1d(attention, self.linear_0.weight.transpose(0, 1))  # (B, C, N)
        else:
            y = self.linear_1(attention)  # (B, C, N)
        return F.relu(x + self.conv2(y.unflatten(2, x.shape[2:])))  # (B, C, H, W)

    def normalize(self, logits: Tensor) -> Tensor:
        """Attention (B, S, N) from logits (B, S, N), in their dtype."""
        return _NORMALIZATIONS[self.normalization](logits)

    def attention_map(self, x: Tensor) -> Tensor:
        """The weights of the memory slots at each position of x (B, C, H, W): (B, S, H, W).

        `forward` does not keep them. They have the dtype of the weights, autocast or not.
        """
        require_map(x, self.channels)
        with autocast_disabled(x):
            queries = self.conv1(x.to(self.conv1.weight.dtype)).flatten(2)  # (B, C, N)
            return self.normalize(self.linear_0(queries)).unflatten(2, x.shape[2:])

    def reset_parameters(self) -> None:
        """The published initialisation: fan-out normal, and equal memories of std sqrt(2/C)."""
        std = (2 / self.channels) ** 0.5
        nn.init.normal_(self.conv1.weight, std=std)
        nn.init.normal_(self.conv2.get_parameter("0.weight"), std=std)
        nn.init.normal_(self.linear_0.weight, std=std)
        if not self.tied:
            with torch.no_grad():
                self.linear_1.weight.copy_(self.linear_0.weight.transpose(0, 1))
        norm = self.conv2[1]
        if isinstance(getattr(norm, "weight", None), nn.Parameter):
            nn.init.ones_(norm.get_parameter("weight"))
            nn.init.zeros_(norm.get_parameter("bias"))

    def fuse(self) -> nn.Module:
        """The inference form, with the composed weights stored and batch norm folded into them.

        If hooks or adapters are attached to a submodule, the result is a copy of this block.
        """
        if not self._is_composable():
            return copy.deepcopy(self).eval()
        with torch.no_grad():
            weights = self._composed_weights()
        normalize = _NORMALIZATIONS[self.normalization]
        dtype = self.conv1.weight.dtype
        return FusedExternalAttention2d(*weights, self.conv2[1], normalize, dtype)

    def _is_composable(self) -> bool:
        """Whether the weights alone say what the submodules before the norm compute."""
        memories = (self.linear_0,) if self.tied else (self.linear_0, self.linear_1)
        return computes_by_weights(self.conv1, self.conv2, self.conv2[0], *memories)

    def _composed_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """M_k W_1 (S, C), its bias M_k b_1 (S,) and W_2 M_v (C, S), in float32 at least."""
        dtype = full_precision(self.conv1.weight.dtype)
        weights = self.conv1.weight, self.conv2[0].weight
        first, last = (w.flatten(1).to(dtype) for w in weights)  # pyright: ignore[reportCallIssue]
        # Flattened, not indexed: the backward of an index fills a tensor of zeros.
        keys = self.linear_0.weight.flatten(1).to(dtype)  # (S, C)
        values = keys.t() if self.tied else self.linear_1.weight.flatten(1).to(dtype)  # (C, S)
        assert self.conv1.bias is not None
        return keys @ first, keys @ self.conv1.bias.to(dtype), last @ values
