"""The decode heads of EANet: the one of its VOC code and the authors' second one in JSeg.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: `EAHead` follows MenghaoGuo/EANet, `model_torch.py` (`EANet.fc0` to `fc2`);
`JSegEAHead` follows Jittor/JSeg, `decode_heads/ea_head.py` and `ops/external_attention.py`.

Deviations: none in what is computed. Submodules carry mmsegmentation's kind of names;
`mmseg_ext.checkpoint.convert_official('eanet', ...)` maps the published ones.
"""

from mmcv.cnn import ConvModule, build_norm_layer
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
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
    normalization: Normalization = "double",
    tied: bool = False,
) -> ExternalAttention2d:
    """`ExternalAttention2d` with its norm from an mmcv `norm_cfg`; None means no norm."""

    def norm_layer(width: int) -> nn.Module:
        return nn.Identity() if norm_cfg is None else build_norm_layer(norm_cfg, width)[1]

    return ExternalAttention2d(channels, memory_size, norm_layer, normalization, tied)


def conv_module(head: BaseDecodeHead, width_in: int, width_out: int, kernel: int) -> ConvModule:
    """A convolution that keeps the size, with the norm and the activation of the head."""
    return ConvModule(
        width_in,
        width_out,
        kernel,
        padding=kernel // 2,
        conv_cfg=head.conv_cfg,
        norm_cfg=head.norm_cfg,
        act_cfg=head.act_cfg,
    )


@MODELS.register_module()
class EAHead(BaseDecodeHead):
    """EANet's head: 3x3 conv, external attention, 3x3 conv, Dropout2d, 1x1 classifier.

    Input is one feature map (B, in_channels, H, W), output logits (B, num_classes, H, W). For
    EANet-R101 on VOC (2048 input channels, 21 classes) it has 11,215,125 parameters. The loss
    averages over all pixels, ignored ones included, as mmsegmentation's `CrossEntropyLoss` does
    by default and the published code too; for the paper's upsampling set `align_corners=True`.

    Args:
        memory_size: memory slots S.
        ea_channels: channels of the first convolution and of external attention.
        channels: channels of the second convolution, which the classifier reads.
        normalization, tied: the paper's ablations, see `ExternalAttention2d`.
        init_cfg: None is the published initialisation (external attention as its layer says, all
            other convolutions PyTorch's default); anything else is mmengine's.
        kwargs: `BaseDecodeHead`'s arguments, `in_channels` and `num_classes` among them.
    """

    in_channels: int  # of the joined maps

    def __init__(
        self,
        in_channels: int,
        channels: int = 256,
        *,
        memory_size: int = 64,
        ea_channels: int = 512,
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
        self.conv_out = conv_module(self, ea_channels, channels, 3)
        self._init_published()

    def _init_published(self) -> None:
        for conv in (self.conv_in.conv, self.conv_out.conv, self.conv_seg):
            conv.reset_parameters()  # pyright: ignore[reportCallIssue] (mmcv has no types)
        self.external_attention.reset_parameters()

    def init_weights(self) -> None:
        """The published initialisation, unless an `init_cfg` asks for another."""
        if self.init_cfg is None:
            self._init_published()
            self._is_init = True
        else:
            super().init_weights()

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Maps of which `in_index` is (B, in_channels, H, W) to logits (B, num_classes, H, W)."""
        x = self._transform_inputs(inputs)  # B, in_channels, H, W
        x = self.conv_in(x)  # B, ea_channels, H, W
        x = self.external_attention(x)
        x = self.conv_out(x)  # B, channels, H, W
        return self.cls_seg(x)  # B, num_classes, H, W


@MODELS.register_module()
class JSegEAHead(BaseDecodeHead):
    """The EANet authors' head in their mmsegmentation-like toolbox JSeg.

    It differs from `EAHead`: 1x1 convolutions only, 256 slots, every convolution (the attention
    logits' too) with bias and ReLU and without norm, and the residual before the last one. With
    ReLUs between its linear maps nothing composes. JSeg reports 79.9 mIoU (81.0 with multi-scale
    and flip) for it on Cityscapes val with ResNet-50 d8, OHEM and class weights. 1,574,656
    parameters at 2048 channels, without the classifier.

    Args:
        memory_size: memory slots S.
        kwargs: `BaseDecodeHead`'s arguments; `norm_cfg` None is the published form.
    """

    in_channels: int  # of the joined maps

    def __init__(self, in_channels: int, channels: int = 512, *, memory_size: int = 256, **kwargs):
        super().__init__(in_channels, channels, **kwargs)
        self.conv1 = conv_module(self, self.in_channels, channels, 1)
        self.linear_0 = conv_module(self, channels, memory_size, 1)
        self.linear_1 = conv_module(self, memory_size, channels, 1)
        self.conv2 = conv_module(self, channels, channels, 1)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Maps of which `in_index` is (B, in_channels, H, W) to logits (B, num_classes, H, W)."""
        x = self.conv1(self._transform_inputs(inputs))  # B, channels, H, W
        x = self.conv2(self.linear_1(self._attention(x)) + x)  # B, channels, H, W
        return self.cls_seg(x)  # B, num_classes, H, W

    def attention_map(self, inputs: list[Tensor]) -> Tensor:
        """The weights of the memory slots at each position of the head's inputs: (B, S, H, W)."""
        return self._attention(self.conv1(self._transform_inputs(inputs)))

    def _attention(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) to (B, S, H, W)."""
        logits = self.linear_0(x).flatten(2)  # B, S, N
        attention = double_normalize(logits.to(full_precision(logits.dtype)))  # B, S, N
        return attention.to(x.dtype).unflatten(2, x.shape[2:])  # B, S, H, W
