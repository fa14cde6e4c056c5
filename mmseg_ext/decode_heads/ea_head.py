"""EANet's decode heads: `EAHead` for VOC, and `JSegEAHead`, the authors' head in JSeg.

Paper: Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks,
arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet (59c03cb), `model_torch.py`, `EANet.fc0` to `fc2` (`EAHead`);
Jittor/JSeg (c14696d), `decode_heads/ea_head.py` and `ops/external_attention.py` (`JSegEAHead`).

Deviations: none in the results. Submodules have mmsegmentation's names;
`mmseg_ext.checkpoint.convert_official('eanet', ...)` converts published files.
"""

from typing import Any

import torch
from mmcv.cnn import ConvModule, build_norm_layer
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.utils import resize
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext.layers.external_attention import (
    ExternalAttention2d,
    Normalization,
    double_normalize,
)
from mmseg_ext.layers.precision import full_precision


def external_attention_block(
    channels: int,
    memory_size: int,
    norm_cfg: dict | None,
    normalization: Normalization,
    tied: bool,
) -> ExternalAttention2d:
    """Return `ExternalAttention2d` with the norm of an mmcv `norm_cfg`; None means no norm."""

    def norm_layer(width: int) -> nn.Module:
        return nn.Identity() if norm_cfg is None else build_norm_layer(norm_cfg, width)[1]

    return ExternalAttention2d(channels, memory_size, norm_layer, normalization, tied)


def conv_module(head: BaseDecodeHead, width_in: int, width_out: int, kernel: int) -> ConvModule:
    """Return a convolution that keeps the size, with the norm and activation of the head."""
    cfg: dict[str, Any] = dict(conv_cfg=head.conv_cfg, norm_cfg=head.norm_cfg, act_cfg=head.act_cfg)
    return ConvModule(width_in, width_out, kernel, padding=kernel // 2, **cfg)


@MODELS.register_module()
class EAHead(BaseDecodeHead):
    """EANet's head: 3x3 conv, external attention, 3x3 conv, Dropout2d, 1x1 classifier.

    Maps one feature map (B, in_channels, H, W) to logits (B, num_classes, H, W). With 2048 input
    channels and 21 classes (EANet on VOC) it has 11,215,125 parameters. The loss averages over all
    pixels, ignored pixels included, as in the published code and by default in mmsegmentation. The
    published code upsamples with `align_corners=True`.

    Args:
        memory_size: number of memory slots S.
        ea_channels: channels of the first convolution and of external attention.
        channels: channels of the second convolution.
        c1_in_channels: if not 0, the second convolution also sees the first of `inputs`, a finer
            map of these channels, and has its size, as in DeepLabV3+ (not in EANet).
        normalization, tied: the paper's ablations, see `ExternalAttention2d`.
        init_cfg: None is the published initialization: PyTorch's default for the convolutions, and
            `ExternalAttention2d.reset_parameters`. Anything else is mmengine's.
        kwargs: arguments of `BaseDecodeHead`, such as `num_classes`.
    """

    in_channels: int  # of the joined maps

    def __init__(
        self,
        in_channels: int,
        channels: int = 256,
        *,
        memory_size: int = 64,
        ea_channels: int = 512,
        c1_in_channels: int = 0,
        normalization: Normalization = "double",
        tied: bool = False,
        norm_cfg: dict | None = dict(type="BN"),
        init_cfg: dict | list | None = None,
        **kwargs,
    ):
        super().__init__(in_channels, channels, norm_cfg=norm_cfg, init_cfg=init_cfg, **kwargs)
        self.conv_in = conv_module(self, self.in_channels, ea_channels, 3)
        self.external_attention = external_attention_block(
            ea_channels, memory_size, norm_cfg, normalization, tied
        )
        self.c1_in_channels = c1_in_channels
        self.conv_out = conv_module(self, ea_channels + c1_in_channels, channels, 3)
        self._init_published()

    def _init_published(self) -> None:
        for conv in (self.conv_in.conv, self.conv_out.conv, self.conv_seg):
            conv.reset_parameters()  # pyright: ignore[reportCallIssue] (mmcv has no types)
        self.external_attention.reset_parameters()

    def init_weights(self) -> None:
        """Initialize as published, or as `init_cfg` says."""
        if self.init_cfg is None:
            self._init_published()
            self._is_init = True
        else:
            super().init_weights()

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Map features (B, in_channels, H, W), at `in_index`, to logits (B, num_classes, H, W).

        With `c1_in_channels`, the logits have the size of `inputs[0]`.
        """
        x = self._transform_inputs(inputs)  # B, in_channels, H, W
        x = self.conv_in(x)  # B, ea_channels, H, W
        x = self.external_attention(x)
        if self.c1_in_channels:
            x = resize(x, inputs[0].shape[2:], None, "bilinear", self.align_corners)
            x = torch.cat([x, inputs[0]], 1)
        x = self.conv_out(x)  # B, channels, H, W
        return self.cls_seg(x)  # B, num_classes, H, W


@MODELS.register_module()
class JSegEAHead(BaseDecodeHead):
    """The head of the EANet authors in their toolbox JSeg.

    Differences from `EAHead`: only 1x1 convolutions, 256 memory slots, bias and ReLU but no norm
    after every convolution (also after the attention logits), and the residual before the last
    convolution. With 2048 input channels it has 1,574,656 parameters, without the classifier. JSeg
    reports 79.9 mIoU on Cityscapes val with ResNet-50 d8, OHEM and class weights (81.0 with
    multiple scales and flip).

    Args:
        memory_size: number of memory slots S.
        kwargs: arguments of `BaseDecodeHead`. As published, `norm_cfg` is None.
    """

    in_channels: int  # of the joined maps

    def __init__(self, in_channels: int, channels: int = 512, *, memory_size: int = 256, **kwargs):
        super().__init__(in_channels, channels, **kwargs)
        self.conv1 = conv_module(self, self.in_channels, channels, 1)
        self.linear_0 = conv_module(self, channels, memory_size, 1)
        self.linear_1 = conv_module(self, memory_size, channels, 1)
        self.conv2 = conv_module(self, channels, channels, 1)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Map features (B, in_channels, H, W), at `in_index`, to logits (B, num_classes, H, W)."""
        x = self.conv1(self._transform_inputs(inputs))  # B, channels, H, W
        x = self.conv2(self.linear_1(self._attention(x)) + x)  # B, channels, H, W
        return self.cls_seg(x)  # B, num_classes, H, W

    def attention_map(self, inputs: list[Tensor]) -> Tensor:
        """Return the weights of the memory slots at each position, (B, S, H, W)."""
        return self._attention(self.conv1(self._transform_inputs(inputs)))

    def _attention(self, x: Tensor) -> Tensor:
        """Map (B, channels, H, W) to attention weights (B, S, H, W)."""
        logits = self.linear_0(x).flatten(2)  # B, S, N
        attention = double_normalize(logits.to(full_precision(logits.dtype)))  # B, S, N
        return attention.to(x.dtype).unflatten(2, x.shape[2:])  # B, S, H, W
