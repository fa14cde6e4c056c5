"""DANet's head with external attention instead of position attention.

Papers: Dual Attention Network for Scene Segmentation, arXiv:1809.02983 (CVPR 2019); Beyond
Self-attention: External Attention using Two Linear Layers for Visual Tasks, arXiv:2105.02358, which
proposes that external attention can replace self-attention in DANet.
Published code: none for this combination. Losses, channel attention and layer names follow
mmsegmentation's `DAHead`.

Our design: external attention replaces the position attention module, between the two convolutions
of its branch. Channel attention stays, because keys of a channel memory would have H * W entries
and fix the input size.
"""

import warnings

from mmseg.models.decode_heads.da_head import CAM
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from mmseg.utils import SampleList, add_prefix
from torch import Tensor, nn

from mmseg_ext.decode_heads.ea_head import conv_module, external_attention_block
from mmseg_ext.layers.external_attention import Normalization


@MODELS.register_module()
class DANetEAHead(BaseDecodeHead):
    """Branches with external attention and channel attention, three classifiers, three losses.

    Maps one feature map (B, in_channels, H, W) to the logits of the sum, of the external attention
    branch and of the channel attention branch, each (B, num_classes, H, W). Predictions use only
    the first. The losses are named `ea_cam.*`, `ea.*` and `cam.*`; each has the weight of
    `loss_decode`, as in `DAHead`. Without channel attention there is one output and one loss.

    Args:
        channels: channels of both branches.
        memory_size: number of memory slots S.
        channel_attention: use DANet's channel attention branch.
        normalization, tied: see `ExternalAttention2d`.
        pam_channels: accepted so configs of `DAHead` work; ignored with a warning.
        kwargs: arguments of `BaseDecodeHead`, such as `num_classes`.
    """

    in_channels: int  # of the joined maps

    def __init__(
        self,
        in_channels: int,
        channels: int = 512,
        *,
        memory_size: int = 64,
        channel_attention: bool = True,
        normalization: Normalization = "double",
        tied: bool = False,
        pam_channels: int | None = None,
        norm_cfg: dict | None = dict(type="BN"),
        **kwargs,
    ):
        super().__init__(in_channels, channels, norm_cfg=norm_cfg, **kwargs)
        self.channel_attention = channel_attention
        if pam_channels is not None:
            warnings.warn(
                f"DANetEAHead: ignores pam_channels={pam_channels}, the width of DAHead's position "
                "attention; remove it from the config",
                stacklevel=2,
            )
        self.ea_in_conv = conv_module(self, self.in_channels, channels, 3)
        self.ea = external_attention_block(channels, memory_size, norm_cfg, normalization, tied)
        self.ea_out_conv = conv_module(self, channels, channels, 3)
        if channel_attention:
            self.cam_in_conv = conv_module(self, self.in_channels, channels, 3)
            self.cam = CAM()
            self.cam_out_conv = conv_module(self, channels, channels, 3)
            self.ea_conv_seg = nn.Conv2d(channels, self.out_channels, 1)
            self.cam_conv_seg = nn.Conv2d(channels, self.out_channels, 1)

    def _classify(self, features: Tensor, classifier: nn.Conv2d) -> Tensor:
        return classifier(features if self.dropout is None else self.dropout(features))

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, Tensor, Tensor] | Tensor:
        """Return the logits of the sum and of both branches; without channel attention, one map."""
        x = self._transform_inputs(inputs)  # B, in_channels, H, W
        ea = self.ea_out_conv(self.ea(self.ea_in_conv(x)))  # B, channels, H, W
        if not self.channel_attention:
            return self.cls_seg(ea)
        cam = self.cam_out_conv(self.cam(self.cam_in_conv(x)))  # B, channels, H, W
        return (
            self.cls_seg(ea + cam),
            self._classify(ea, self.ea_conv_seg),
            self._classify(cam, self.cam_conv_seg),
        )

    def named_logits(self, outputs: tuple[Tensor, Tensor, Tensor] | Tensor) -> dict[str, Tensor]:
        """Return the outputs of `forward` by the prefix of their losses; the first is predicted."""
        if isinstance(outputs, Tensor):
            return {"": outputs}
        return dict(zip(("ea_cam", "ea", "cam"), outputs, strict=True))

    def predict(self, inputs: list[Tensor], batch_img_metas: list[dict], test_cfg) -> Tensor:
        """Return the logits of the sum at the size of the images."""
        logits, *_ = self.named_logits(self.forward(inputs)).values()
        return self.predict_by_feat(logits, batch_img_metas)

    def loss_by_feat(
        self, seg_logits: tuple[Tensor, Tensor, Tensor] | Tensor, batch_data_samples: SampleList
    ) -> dict:
        """Return the losses of every output, named with its prefix."""
        if isinstance(seg_logits, Tensor):
            return super().loss_by_feat(seg_logits, batch_data_samples)
        losses = {}
        for prefix, logits in self.named_logits(seg_logits).items():
            losses |= add_prefix(super().loss_by_feat(logits, batch_data_samples), prefix)
        return losses
