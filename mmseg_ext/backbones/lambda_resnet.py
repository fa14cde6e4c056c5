"""LambdaResNet: a bottleneck ResNet with lambda layers instead of some or all 3x3 convolutions.

Paper: LambdaNetworks: Modeling Long-Range Interactions Without Attention, arXiv:2102.08602.
Published code: none by the authors. Names and the strided block follow d-li14/lambda.pytorch
(646de55) with torchvision's names, so weights of a torchvision ResNet load. `arch='timm_...'`
follows huggingface/pytorch-image-models (aa4b585), `timm/models/byoanet.py`.

Deviations:

- Lambda layers can be dilated.
- timm's 2x2 pooling rounds odd sizes up; timm raises an error.

`Design` has what a variant sets, `Layout` the strides and dilations of the stages. `plan_stage`
turns both into a `BlockPlan` for each bottleneck, before any module is built.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

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


@dataclass(frozen=True)
class Design:
    """The arguments of `LambdaResNet` that a variant can set. They are described there."""

    depth: int | Sequence[int]
    placement: Placement
    stem: str
    pool: Literal["avg3", "avg2"]
    key_depth: int
    num_heads: int
    intra_depth: int
    receptive_field: int | None
    resolution: tuple[int, int] | None
    act_cfg: dict
    position_bias: bool
    share_embeddings: Literal["stage"] | None
    lambda_stages: Sequence[int]
    avg_down: bool
    se_ratio: float | None

    def check(self) -> None:
        """Raise a ValueError for an unknown stem."""
        if self.stem not in STEMS:
            raise ValueError(f"stem={self.stem!r}: unknown; use {', '.join(STEMS)}")


@dataclass(frozen=True)
class Layout:
    """The strides and dilations of the stages, as in mmsegmentation's ResNet."""

    strides: Sequence[int]
    dilations: Sequence[int]
    contract_dilation: bool
    style: Literal["pytorch", "caffe"]

    def check(self, num_stages: int) -> None:
        """Raise a ValueError for an unknown style or another number of stages."""
        if self.style not in ("pytorch", "caffe"):
            raise ValueError(f"style={self.style!r}: unknown; use 'pytorch' or 'caffe'")
        if not len(self.strides) == len(self.dilations) == num_stages:
            raise ValueError(
                f"strides={tuple(self.strides)}, dilations={tuple(self.dilations)}: "
                f"num_stages={num_stages} needs one number per stage"
            )

    def total_stride(self, stages: int) -> int:
        """Return the stride after the stem and the first `stages` stages."""
        return STEM_STRIDE * math.prod(self.strides[:stages])


@dataclass(frozen=True)
class BlockPlan:
    """One bottleneck.

    Args:
        channels: width of its inner layers.
        strides: strides of `conv1` and `conv2`.
        dilation: of `conv2`.
        has_lambda: whether `conv2` is a lambda layer instead of a 3x3 convolution.
        resolution: size of the largest map of a lambda layer with global context.
    """

    in_channels: int
    channels: int
    strides: tuple[int, int]
    dilation: int
    has_lambda: bool
    resolution: tuple[int, int] | None


def plan_stage(
    stage: int, design: Design, layout: Layout, lambda_indices: Sequence[int]
) -> list[BlockPlan]:
    """Return the blocks of a stage; those with an index in `lambda_indices` have a lambda layer."""
    plans = []
    in_channels = STEM_WIDTH if stage == 0 else STAGE_WIDTHS[stage - 1] * EXPANSION
    input_stride = layout.total_stride(stage)
    for i in range(block_counts(design.depth)[stage]):
        strides, dilation = (1, 1), layout.dilations[stage]
        if i == 0:
            stride = layout.strides[stage]
            strides = (stride, 1) if layout.style == "caffe" else (1, stride)
            if layout.contract_dilation and dilation > 1:
                dilation //= 2  # as in mmsegmentation, in the first block only
        resolution = None
        if i in lambda_indices and design.resolution is not None:
            if dilation > 1:
                raise ValueError(
                    f"dilations: {dilation} in stage {stage}; use 1 for lambda layers with a "
                    "resolution"
                )
            # The lambda layer's input has the stride of the 1x1 convolution before it.
            resolution = _strided_size(design.resolution, input_stride * strides[0])
        plan = BlockPlan(
            in_channels=in_channels,
            channels=STAGE_WIDTHS[stage],
            strides=strides,
            dilation=dilation,
            has_lambda=i in lambda_indices,
            resolution=resolution,
        )
        plans.append(plan)
        in_channels = STAGE_WIDTHS[stage] * EXPANSION
        input_stride *= max(strides)
    return plans


def _strided_size(size: tuple[int, int], stride: int) -> tuple[int, int]:
    height, width = size
    return math.ceil(height / stride), math.ceil(width / stride)


def lambda_blocks(
    depth: int | Sequence[int], lambda_stages: Sequence[int], placement: Placement
) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the blocks with a lambda layer, for each stage."""
    counts = block_counts(depth)
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
    for stage, (indices, count) in enumerate(zip(placement, counts, strict=True)):
        if any(not 0 <= i < count for i in indices):
            raise ValueError(f"placement of stage {stage}: {indices} not in [0, {count - 1}]")
    blocks = []
    for stage, indices in enumerate(placement):
        blocks.append(tuple(indices) if stage in lambda_stages else ())
    return tuple(blocks)


def block_counts(depth: int | Sequence[int]) -> tuple[int, ...]:
    """Return the number of bottlenecks in each stage; raise ValueError for an unknown depth."""
    if not isinstance(depth, int):
        return tuple(depth)
    if depth not in DEPTHS:
        known = ", ".join(map(str, DEPTHS))
        raise ValueError(f"depth={depth}: unknown; use {known} or four block counts")
    return DEPTHS[depth]


class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation (arXiv:1709.01507): channels times gates from their means."""

    def __init__(self, channels: int, hidden_channels: int):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, hidden_channels, 1)
        self.fc2 = nn.Conv2d(hidden_channels, channels, 1)

    def gates(self, x: Tensor) -> Tensor:
        """Compute the gates (B, C, 1, 1) in (0, 1) of x (B, C, H, W)."""
        mean = x.mean(dim=(2, 3), keepdim=True)
        return self.fc2(self.fc1(mean).relu()).sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gates(x)


class Bottleneck(nn.Module):
    """1x1 convolution, 3x3 convolution or lambda layer, 1x1 convolution, each with a norm.

    Only blocks with a 3x3 convolution have squeeze-and-excitation.

    Args:
        embeddings: position embeddings that a lambda layer shares; None for its own.
    """

    def __init__(
        self,
        plan: BlockPlan,
        design: Design,
        norm_cfg: dict,
        embeddings: PositionEmbeddings | None = None,
    ):
        super().__init__()

        def norm(width: int) -> nn.Module:
            return build_norm_layer(norm_cfg, width)[1]

        channels, out_channels = plan.channels, plan.channels * EXPANSION
        self.conv1 = nn.Conv2d(plan.in_channels, channels, 1, plan.strides[0], bias=False)
        self.bn1 = norm(channels)
        if plan.has_lambda:
            self.conv2 = LambdaLayer(
                channels,
                key_depth=design.key_depth,
                num_heads=design.num_heads,
                intra_depth=design.intra_depth,
                receptive_field=design.receptive_field,
                resolution=plan.resolution,
                stride=plan.strides[1],
                dilation=plan.dilation,
                position_bias=design.position_bias,
                pool=design.pool,
                embeddings=embeddings,
                norm_layer=norm,
            )
        else:
            self.conv2 = nn.Conv2d(
                channels,
                channels,
                kernel_size=3,
                stride=plan.strides[1],
                padding=plan.dilation,
                dilation=plan.dilation,
                bias=False,
            )
        self.bn2 = norm(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = norm(out_channels)
        self.act = build_activation_layer(design.act_cfg)
        self.se = None
        if design.se_ratio is not None and not plan.has_lambda:
            hidden = max(1, round(out_channels * design.se_ratio))
            self.se = SqueezeExcitation(out_channels, hidden)
        self.downsample = None
        stride = max(plan.strides)
        if stride != 1 or plan.in_channels != out_channels:
            self.downsample = _downsample(
                plan.in_channels, out_channels, stride, design.avg_down, norm_cfg
            )

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


def _downsample(
    in_channels: int, out_channels: int, stride: int, avg_down: bool, norm_cfg: dict
) -> nn.Sequential:
    """Return a 1x1 convolution and its norm, with `avg_down` after an average pooling."""
    layers = nn.Sequential()
    if avg_down:
        # At stride 1 the pooling does nothing, but mmseg's names count it.
        layers.append(nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False))
        stride = 1
    layers.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
    layers.append(build_norm_layer(norm_cfg, out_channels)[1])
    return layers


def _build_stage(plans: Sequence[BlockPlan], design: Design, norm_cfg: dict) -> nn.Sequential:
    """Return the blocks of a stage; lambda layers for maps of one size can share embeddings."""
    shared: dict[tuple[int, int] | None, PositionEmbeddings] = {}  # by the size
    blocks = nn.Sequential()
    for plan in plans:
        block = Bottleneck(plan, design, norm_cfg, shared.get(plan.resolution))
        if isinstance(block.conv2, LambdaLayer) and design.share_embeddings is not None:
            shared[plan.resolution] = block.conv2.embeddings
        blocks.append(block)
    return blocks


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
        arguments = Design(
            depth=depth,
            placement=placement,
            stem=stem,
            pool=pool,
            key_depth=key_depth,
            num_heads=num_heads,
            intra_depth=intra_depth,
            receptive_field=receptive_field,
            resolution=resolution,
            act_cfg=act_cfg or dict(type="ReLU", inplace=True),
            position_bias=position_bias,
            share_embeddings=share_embeddings,
            lambda_stages=lambda_stages,
            avg_down=avg_down,
            se_ratio=se_ratio,
        )
        design = Design(**settings_of(arch or {}, ARCHS, vars(arguments)))
        design.check()
        strides = strides or (1, 2, 2, 2)[:num_stages]
        dilations = dilations or (1,) * num_stages
        layout = Layout(strides, dilations, contract_dilation, style)
        layout.check(num_stages)
        channels = [width * EXPANSION for width in STAGE_WIDTHS[:num_stages]]
        self._set_options(
            arch,
            channels,
            strides=[layout.total_stride(stage + 1) for stage in range(num_stages)],
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            num_classes=num_classes,
            in_channels=in_channels,
        )
        self.norm_eval = norm_eval
        norm_cfg = norm_cfg or {"type": "BN", "requires_grad": True}

        self._build_stem(design, norm_cfg)
        placed = lambda_blocks(design.depth, design.lambda_stages, design.placement)
        for stage in range(self.built):
            plans = plan_stage(stage, design, layout, placed[stage])
            self.add_module(f"layer{stage + 1}", _build_stage(plans, design, norm_cfg))
        self.fc = None
        if num_classes is not None:
            self.fc = nn.Linear(channels[-1], num_classes)
        self._reset_parameters()
        self._freeze_stages()

    def _build_stem(self, design: Design, norm_cfg: dict) -> None:
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        if design.stem == "plain":
            self.conv1 = nn.Conv2d(self.in_channels, STEM_WIDTH, 7, 2, padding=3, bias=False)
            self.bn1 = build_norm_layer(norm_cfg, STEM_WIDTH)[1]
            self.act = build_activation_layer(design.act_cfg)
            return
        self.stem = nn.Sequential()
        stride = 2
        for before, after in pairwise((self.in_channels, *STEMS[design.stem])):
            self.stem.append(nn.Conv2d(before, after, 3, stride, padding=1, bias=False))
            self.stem.append(build_norm_layer(norm_cfg, after)[1])
            self.stem.append(build_activation_layer(design.act_cfg))
            stride = 1

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
