"""External attention on maps: attention to a small learned memory that all samples share.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet, `model_torch.py` (`External_attention`).

Deviations from the published code:
- For maps of more than S positions, the 1x1 convolution and the keys are multiplied into one map,
  and so are the values and the second convolution (`_composed_external_attention.py`). Results and
  state dict are the same.
- The two memories are separate parameters with equal initial values. The published module shares
  their storage on a CPU by accident, but not on a GPU, where its weights were trained.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers import _composed_external_attention as composed
from mmseg_ext.layers.input_shapes import require_map
from mmseg_ext.layers.precision import autocast_disabled, full_precision

Normalization = Literal["double", "softmax"]

_EPS = 1e-9  # of the published code
# ONNX optimizers remove the addition of 1e-9, because they treat it as zero. Scaling both summands
# prevents this. A power of two does not change the digits of the result.
_SCALE = 2.0**30


def double_normalize(logits: Tensor, positions: int = -1, slots: int = 1) -> Tensor:
    """Apply a softmax over positions, then divide by the sum over slots (paper, Eq. 10-11).

    `positions` and `slots` are dimensions of `logits`, by default (B, S, N). The weights of each
    position sum to one. The result has the shape and dtype of `logits`; the computation is in
    float32 at least.
    """
    shares = logits.softmax(positions, dtype=full_precision(logits.dtype))
    total = (_SCALE * shares.sum(slots, keepdim=True) + _SCALE * _EPS) / _SCALE
    return (shares / total).to(logits.dtype)


def slot_softmax(logits: Tensor) -> Tensor:
    """Apply a softmax over the slots of logits (B, S, N), computed in float32 at least."""
    return logits.softmax(1, dtype=full_precision(logits.dtype)).to(logits.dtype)


_NORMALIZATIONS = {"double": double_normalize, "softmax": slot_softmax}


class ExternalAttention2d(nn.Module):
    """The published external attention block, (B, C, H, W) to (B, C, H, W).

    1x1 convolution with bias, keys M_k, normalization, values M_v, 1x1 convolution, norm,
    residual, ReLU. With C = 512 and S = 64 the block has 591,360 parameters. At 128 x 128 positions
    it needs 1.11 G multiply-adds; the published order needs 9.66 G.

    Args:
        channels: C.
        memory_size: S, the number of memory slots (`k` in the published code).
        norm_layer: builds the norm after the second convolution from its number of channels. Batch
            norm is folded into the product before it; any other norm is called.
        normalization: 'double' is Eq. 10-11, a softmax over positions and L1 over slots. 'softmax'
            is a softmax over the slots, the paper's ablation.
        tied: one memory, M_v = M_k^T (Eq. 5-6), instead of two (Eq. 7-8).

    Raises:
        ValueError: if `normalization` is unknown, and in `forward` if the input is not
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
        # Names and shapes as in the published state dict.
        self.conv1 = nn.Conv2d(channels, channels, 1)
        self.linear_0 = nn.Conv1d(channels, memory_size, 1, bias=False)
        if not tied:
            self.linear_1 = nn.Conv1d(memory_size, channels, 1, bias=False)
        self.conv2 = nn.Sequential(
            nn.Conv2d(channels, channels, 1, bias=False), norm_layer(channels)
        )
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, C, H, W); the result equals `published_order`."""
        require_map(x, self.channels)
        if composed.should_use(self, x):
            return composed.attend(self, x)
        return self.published_order(x)

    def published_order(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, C, H, W), one submodule after the other."""
        queries = self.conv1(x).flatten(2)  # (B, C, N)
        attention = self.normalize(self.linear_0(queries))  # (B, S, N)
        if self.tied:
            y = F.conv1d(attention, self.linear_0.weight.transpose(0, 1))  # (B, C, N)
        else:
            y = self.linear_1(attention)  # (B, C, N)
        return F.relu(x + self.conv2(y.unflatten(2, x.shape[2:])))  # (B, C, H, W)

    def normalize(self, logits: Tensor) -> Tensor:
        """Return the attention (B, S, N) for logits (B, S, N), in their dtype."""
        return _NORMALIZATIONS[self.normalization](logits)

    def attention_map(self, x: Tensor) -> Tensor:
        """Return the weights of the memory slots for x (B, C, H, W), (B, S, H, W).

        Their dtype is the dtype of the parameters, also under autocast.
        """
        require_map(x, self.channels)
        with autocast_disabled(x):
            queries = self.conv1(x.to(self.conv1.weight.dtype)).flatten(2)  # (B, C, N)
            return self.normalize(self.linear_0(queries)).unflatten(2, x.shape[2:])

    def reset_parameters(self) -> None:
        """Initialize as published: fan-out normal, and equal memories with std sqrt(2/C)."""
        std = (2 / self.channels) ** 0.5
        nn.init.normal_(self.conv1.weight, std=std)
        nn.init.normal_(self.conv2.get_parameter("0.weight"), std=std)
        nn.init.normal_(self.linear_0.weight, std=std)
        if not self.tied:
            with torch.no_grad():
                self.linear_1.weight.copy_(self.linear_0.weight.transpose(0, 1))
