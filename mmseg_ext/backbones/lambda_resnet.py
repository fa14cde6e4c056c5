"""LambdaResNet: a bottleneck ResNet with lambda layers instead of some or all 3x3 convolutions.

Paper: LambdaNetworks: Modeling Long-Range Interactions Without Attention, arXiv:2102.08602.
Published code: none by the authors. Names and the strided block follow d-li14/lambda.pytorch
(646de55) with torchvision's names, so weights of a torchvision ResNet load. `arch='timm_...'`
follows huggingface/pytorch-image-models (aa4b585), `timm/models/byoanet.py`.

Deviations:

- Lambda layers can be dilated.
- timm's 2x2 pooling rounds odd sizes up; timm raises an error.
"""

import math
import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.model import constant_init, kaiming_init
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import IMAGENET, Backbone, OutIndices, Settings, settings_of
from mmseg_ext.layers.lambda_layer import LambdaLayer, PositionEmbeddings

# Bottlenecks per stage: ResNet's for 26, 50, 101 and 152, the paper's from 200.
DEPTHS = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    270: (4, 29, 53, 4),
    350: (4, 36, 72, 4),
    420: (4, 44, 87, 4),
}

# The paper's hybrids: convolutions in c2 and c3, lambda layers in c5 and in these blocks of c4,
# counted from 0. The paper does not define its count.
HYBRID_C4 = {
    50: (3,),
    101: (6, 12, 18),
    152: (5, 10, 15, 20, 25, 30),
    200: (5, 10, 15, 20, 25, 30),
    270: (8, 16, 24, 32, 40, 48),
    350: (10, 20, 30, 40, 50, 60),
    420: (15, 30, 45, 60, 75),
}

_TIMM = {"stem": "tiered", "receptive_field": 9, "position_bias": True, "pool": "avg2"}
# Keyword arguments of LambdaResNet.
ARCHS = {
    "timm_26t": {**_TIMM, "depth": (2, 2, 2, 2), "placement": ((), (), (1,), (0, 1))},
    "timm_50ts": {
        **_TIMM,
        "depth": (3, 4, 6, 3),
        "placement": ((), (3,), (1, 3, 5), (1,)),
        "act_cfg": {"type": "SiLU", "inplace": True},
    },
}

EXPANSION = 4
STEM_WIDTH, STEM_STRIDE = 64, 4
STAGE_WIDTHS = (64, 128, 256, 512)
# Widths of the 3x3 convolutions; the plain stem is one 7x7 convolution.
STEMS = {"plain": (), "deep": (32, 32, STEM_WIDTH), "tiered": (24, 32, STEM_WIDTH)}

Placement = Literal["all", "hybrid"] | Sequence[Sequence[int]]


def lambda_blocks(
    depth: int | Sequence[int], lambda_stages: Sequence[int], placement: Placement
) -> list[list[bool]]:
    """Return whether each bottleneck of each stage has a lambda layer.

    Raises:
        ValueError: for an unknown depth, stage or placement.
    """
    if isinstance(depth, int) and depth not in DEPTHS:
        known = ", ".join(map(str, DEPTHS))
        raise ValueError(f"depth={depth}: unknown; use {known} or four block counts")
    counts = DEPTHS[depth] if isinstance(depth, int) else tuple(depth)
    if any(not 0 <= stage < len(counts) for stage in lambda_stages):
        raise ValueError(f"lambda_stages={lambda_stages}: not in [0, {len(counts) - 1}]")
    if placement == "all":
        placement = [range(count) for count in counts]
    elif placement == "hybrid":
        if depth not in HYBRID_C4:
            known = ", ".join(map(str, HYBRID_C4))
            raise ValueError(f"placement='hybrid': not defined for depth {depth}; use {known}")
        placement = [(), (), HYBRID_C4[depth], range(counts[3])]
    elif isinstance(placement, str) or len(placement) != len(counts):
        raise ValueError(
            f"placement={placement!r}: unknown; use 'all', 'hybrid' or the block indices of each "
            f"of the {len(counts)} stages"
        )
    blocks = []
    for stage, (indices, count) in enumerate(zip(placement, counts, strict=True)):
        if any(not 0 <= i < count for i in indices):
            raise ValueError(f"placement of stage {stage}: {indices} not in [0, {count - 1}]")
        blocks.append([stage in lambda_stages and i in indices for i in range(count)])
    return blocks


class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation (arXiv:1709.01507): channels times gates from their means."""

    def __init__(self, channels: int, hidden_channels: int):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, hidden_channels, 1)
        self.fc2 = nn.Conv2d(hidden_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(2, 3), keepdim=True)
        return x * self.fc2(self.fc1(mean).relu()).sigmoid()  # gates (B, C, 1, 1)


class Bottleneck(nn.Module):
    """1x1 convolution, 3x3 convolution or lambda layer, 1x1 convolution, each with a norm.

    Args:
        channels: width of the inner layers.
        strides: of `conv1` and `conv2`.
        dilation: of `conv2`.
        lambda_layer: further arguments of the `LambdaLayer` in place of the 3x3 convolution; None
            for the convolution.
        avg_down: average pooling before the 1x1 convolution of a strided shortcut.
        se_ratio: of squeeze-and-excitation, which only blocks with a 3x3 convolution have.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        strides: tuple[int, int],
        dilation: int,
        lambda_layer: dict[str, Any] | None,
        norm_cfg: dict,
        act_cfg: dict,
        avg_down: bool,
        se_ratio: float | None,
    ):
        super().__init__()

        def norm(width: int) -> nn.Module:
            return build_norm_layer(norm_cfg, width)[1]

        out_channels = channels * EXPANSION
        self.conv1 = nn.Conv2d(in_channels, channels, 1, strides[0], bias=False)
        self.bn1 = norm(channels)
        if lambda_layer is not None:
            self.conv2 = LambdaLayer(
                channels, stride=strides[1], dilation=dilation, norm_layer=norm, **lambda_layer
            )
        else:
            self.conv2 = nn.Conv2d(
                channels, channels, 3, strides[1], padding=dilation, dilation=dilation, bias=False
            )
        self.bn2 = norm(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = norm(out_channels)
        self.act = build_activation_layer(act_cfg)
        self.se = None
        if se_ratio is not None and lambda_layer is None:
            self.se = SqueezeExcitation(out_channels, max(1, round(out_channels * se_ratio)))
        self.downsample = None
        stride = max(strides)
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential()
            if avg_down:
                # At stride 1 the pooling does nothing, but mmseg's names count it.
                pool = nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False)
                self.downsample.append(pool)
                stride = 1
            self.downsample.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.downsample.append(norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, 4 * channels, ceil(H / stride), ceil(W / stride))."""
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.se is not None:
            y = self.se(y)
        if self.downsample is not None:
            x = self.downsample(x)
        return self.act(y + x)


class LambdaResNet(Backbone):
    """ResNet with lambda layers, for images (B, 3, H, W) of any size.

    Returns a tuple of maps with 256, 512, 1024 and 2048 channels at strides 4, 8, 16 and 32, one
    for each stage in `out_indices`. With `num_classes`, returns logits (B, num_classes).

    Args:
        depth: a key of `DEPTHS`, or the number of blocks in each stage.
        arch: a key of `ARCHS`, or a dict of keyword arguments, which override the others.
        lambda_stages: stages 0 to 3 (c2 to c5) that can have lambda layers; () is a plain ResNet.
        placement: the blocks with a lambda layer in these stages: 'all', the paper's 'hybrid', or
            indices for each stage.
        key_depth, num_heads, intra_depth, receptive_field: k, h, u and r of the lambda layers. r is
            odd, or None with `resolution`.
        resolution: (H, W) of the largest input image, for lambda layers with global context.
        share_embeddings: 'stage' shares the position embeddings of all lambda layers in a stage
            that have the same shape, the paper's low-memory variant.
        position_bias: add a bias to the position embeddings, as in the published weights. The paper
            has none.
        pool: average pooling of strided lambda layers, 3x3 (d-li14) or 2x2 (timm).
        stem: 7x7 convolution, three 3x3 convolutions (as ResNetV1c), or timm's three with 24, 32
            and 64 channels. A 3x3 max pooling follows.
        avg_down: average pooling before the 1x1 convolution of a strided shortcut (ResNet-D).
        se_ratio: squeeze-and-excitation in blocks without a lambda layer, as hidden width over
            width; SENet uses 1/16.
        num_stages, strides, dilations, contract_dilation, style, in_channels, norm_eval: as in
            mmsegmentation's ResNet. Lambda layers are dilated, too.
        out_indices, frozen_stages, with_cp, norm_cfg, num_classes, init_cfg: see `Backbone`.

    Raises:
        ValueError: for arguments outside these values, or that `LambdaLayer` rejects.
    """

    arch_settings = ARCHS
    _README = "depth 50: README of https://github.com/d-li14/lambda.pytorch"
    _RELEASE = "github.com/rwightman/pytorch-image-models/releases/tag/v0.1-attn-weights"
    _TIMM_CFG = IMAGENET | {
        "input_size": (3, 256, 256),
        "source": f"https://{_RELEASE}",
        "license": "Apache-2.0",
    }
    default_cfgs = {"": IMAGENET | {"source": _README}, **dict.fromkeys(ARCHS, _TIMM_CFG)}
    published_names = {r"stages\.": "timm_lambda_resnet", r".*\.conv_qkv\.": "lambda_resnet"}

    def __init__(
        self,
        depth: int | Sequence[int] = 50,
        arch: str | Settings | None = None,
        lambda_stages: Sequence[int] = (0, 1, 2, 3),
        placement: Placement = "all",
        key_depth: int = 16,
        num_heads: int = 4,
        intra_depth: int = 1,
        receptive_field: int | None = 23,
        resolution: tuple[int, int] | None = None,
        share_embeddings: Literal["stage"] | None = None,
        position_bias: bool = False,
        pool: Literal["avg3", "avg2"] = "avg3",
        stem: Literal["plain", "deep", "tiered"] = "plain",
        avg_down: bool = False,
        se_ratio: float | None = None,
        num_stages: int = 4,
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        contract_dilation: bool = False,
        style: Literal["pytorch", "caffe"] = "pytorch",
        in_channels: int = 3,
        out_indices: OutIndices = (0, 1, 2, 3),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        num_classes: int | None = None,
        norm_cfg: dict | None = None,
        act_cfg: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(init_cfg=init_cfg)
        arguments = {
            "depth": depth,
            "lambda_stages": lambda_stages,
            "placement": placement,
            "key_depth": key_depth,
            "num_heads": num_heads,
            "intra_depth": intra_depth,
            "receptive_field": receptive_field,
            "resolution": resolution,
            "share_embeddings": share_embeddings,
            "position_bias": position_bias,
            "pool": pool,
            "stem": stem,
            "avg_down": avg_down,
            "se_ratio": se_ratio,
            "act_cfg": act_cfg or {"type": "ReLU", "inplace": True},
        }
        settings = settings_of(arch or {}, ARCHS, arguments)
        strides = strides or (1, 2, 2, 2)[:num_stages]
        dilations = dilations or (1,) * num_stages
        if settings["stem"] not in STEMS:
            raise ValueError(f"stem={settings['stem']!r}: unknown; use {', '.join(STEMS)}")
        if style not in ("pytorch", "caffe"):
            raise ValueError(f"style={style!r}: unknown; use 'pytorch' or 'caffe'")
        if not len(strides) == len(dilations) == num_stages:
            raise ValueError(
                f"strides={tuple(strides)}, dilations={tuple(dilations)}: "
                f"num_stages={num_stages} needs one number per stage"
            )
        total_strides = list(accumulate(strides, operator.mul, initial=STEM_STRIDE))
        channels = [width * EXPANSION for width in STAGE_WIDTHS[:num_stages]]
        self._set_options(
            arch,
            channels,
            total_strides[1:],
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            num_classes=num_classes,
            in_channels=in_channels,
        )
        self.norm_eval = norm_eval
        norm_cfg = norm_cfg or {"type": "BN", "requires_grad": True}

        self._build_stem(settings["stem"], norm_cfg, settings["act_cfg"])
        has_lambda = lambda_blocks(
            settings["depth"], settings["lambda_stages"], settings["placement"]
        )
        for stage in range(self.built):
            dilation = first_dilation = dilations[stage]
            if contract_dilation and dilation > 1:
                first_dilation //= 2  # as in mmsegmentation
            layer = self._build_stage(
                stage, has_lambda[stage], style, (first_dilation, dilation), settings, norm_cfg
            )
            self.add_module(f"layer{stage + 1}", layer)
        self.fc = None
        if num_classes is not None:
            self.fc = nn.Linear(channels[-1], num_classes)
        self._reset_parameters()
        self._freeze_stages()

    def _build_stem(self, stem: str, norm_cfg: dict, act_cfg: dict) -> None:
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        if stem == "plain":
            self.conv1 = nn.Conv2d(self.in_channels, STEM_WIDTH, 7, 2, padding=3, bias=False)
            self.bn1 = build_norm_layer(norm_cfg, STEM_WIDTH)[1]
            self.act = build_activation_layer(act_cfg)
            return
        self.stem = nn.Sequential()
        stride = 2
        for before, after in pairwise((self.in_channels, *STEMS[stem])):
            self.stem.append(nn.Conv2d(before, after, 3, stride, padding=1, bias=False))
            self.stem.append(build_norm_layer(norm_cfg, after)[1])
            self.stem.append(build_activation_layer(act_cfg))
            stride = 1

    def _build_stage(
        self,
        stage: int,
        has_lambda: Sequence[bool],
        style: str,
        dilations: tuple[int, int],
        settings: Settings,
        norm_cfg: dict,
    ) -> nn.Sequential:
        """Return the blocks of a stage; `dilations` are of the first block and of the others."""
        of_lambda_layers = ("key_depth", "num_heads", "intra_depth", "receptive_field")
        of_lambda_layers += ("position_bias", "pool")
        lambda_options = {key: settings[key] for key in of_lambda_layers}
        of_blocks = ("act_cfg", "avg_down", "se_ratio")
        block_options = {key: settings[key] for key in of_blocks}
        shared: dict[Any, PositionEmbeddings] = {}  # by the size of the map
        in_channels, input_stride = STEM_WIDTH, STEM_STRIDE
        if stage > 0:
            in_channels, input_stride = (
                self.stage_channels[stage - 1],
                self.stage_strides[stage - 1],
            )
        blocks = nn.Sequential()
        for i, has_lambda_layer in enumerate(has_lambda):
            stride = self.stage_strides[stage] // input_stride  # 1 after the first block
            strides = (stride, 1) if style == "caffe" else (1, stride)
            dilation = dilations[min(i, 1)]
            lambda_layer = None
            if has_lambda_layer:
                size = settings["resolution"]
                if size is not None and dilation > 1:
                    raise ValueError(
                        f"dilations: {dilation} in stage {stage}; use 1 for lambda layers with a "
                        "resolution"
                    )
                if size is not None:
                    # The lambda layer's input has the stride of the 1x1 convolution before it.
                    size = tuple(math.ceil(side / (input_stride * strides[0])) for side in size)
                lambda_layer = {**lambda_options, "resolution": size}
                lambda_layer["embeddings"] = shared.get(size)
            block = Bottleneck(
                in_channels,
                STAGE_WIDTHS[stage],
                strides,
                dilation,
                lambda_layer,
                norm_cfg=norm_cfg,
                **block_options,
            )
            if settings["share_embeddings"] is not None and isinstance(block.conv2, LambdaLayer):
                shared[block.conv2.resolution] = block.conv2.embeddings
            blocks.append(block)
            in_channels, input_stride = self.stage_channels[stage], self.stage_strides[stage]
        return blocks

    def _reset_parameters(self) -> None:
        """Initialize convolutions with He's method (fan-out), lambda layers as in the paper.

        The last norm of each block starts at zero, as in both published implementations.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                kaiming_init(module)
        for module in self.modules():
            if isinstance(module, LambdaLayer):
                module.reset_parameters()
            elif isinstance(module, Bottleneck):
                constant_init(module.bn3, 0)

    @property
    def parts(self) -> list[list[str]]:
        stem = ["stem"] if hasattr(self, "stem") else ["conv1", "bn1"]
        stages = [[f"layer{i + 1}"] for i in range(self.built)]
        return [stem, *stages]

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map images (B, 3, H, W) to logits (B, num_classes) or a tuple of maps (B, C, h, w).

        Raises:
            ValueError: for another shape, or for images larger than `resolution`.
        """
        self._check_images(images)
        if hasattr(self, "stem"):
            x = self.stem(images)
        else:
            x = self.act(self.bn1(self.conv1(images)))
        x = self.maxpool(x)
        maps = []
        for i in range(self.built):
            for block in getattr(self, f"layer{i + 1}"):
                x = self._run(block, x)
            if i in self.out_indices:
                maps.append(x)
        return tuple(maps) if self.fc is None else self.fc(x.mean(dim=(2, 3)))
