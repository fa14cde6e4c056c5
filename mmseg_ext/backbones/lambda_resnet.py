"""LambdaResNet: a bottleneck ResNet with lambda layers instead of some or all 3x3 convolutions.

Paper: LambdaNetworks: Modeling Long-Range Interactions Without Attention, arXiv:2102.08602.
Published code: none by the authors. Names and the strided block follow d-li14/lambda.pytorch
(646de55) with torchvision's names, so weights of a torchvision ResNet load. `arch='timm_...'`
follows huggingface/pytorch-image-models (aa4b585), `timm/models/byoanet.py`.

Deviations:

- Lambda layers can be dilated.
- timm's 2x2 pooling rounds odd sizes up; timm raises an error.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul
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
    return tuple(tuple(b) if i in lambda_stages else () for i, b in enumerate(placement))


def block_counts(depth: int | Sequence[int]) -> tuple[int, ...]:
    """Return the number of bottlenecks in each stage; raise ValueError for an unknown depth."""
    if isinstance(depth, int) and depth not in DEPTHS:
        known = ", ".join(map(str, DEPTHS))
        raise ValueError(f"depth={depth}: unknown; use {known} or four block counts")
    return DEPTHS[depth] if isinstance(depth, int) else tuple(depth)


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

    Args:
        strides: strides of `conv1` and `conv2`.
        lambda_args: keyword arguments of `LambdaLayer`; None for a 3x3 convolution.
        se_ratio: width of squeeze-and-excitation, which only blocks with a 3x3 convolution have.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        strides: tuple[int, int],
        dilation: int,
        lambda_args: dict | None,
        norm_cfg: dict,
        act_cfg: dict,
        se_ratio: float | None,
        avg_down: bool,
    ):
        super().__init__()

        def norm(width: int) -> nn.Module:
            return build_norm_layer(norm_cfg, width)[1]

        out_channels, stride = channels * EXPANSION, max(strides)
        self.conv1 = nn.Conv2d(in_channels, channels, 1, strides[0], bias=False)
        self.bn1 = norm(channels)
        inner = strides[1]
        if lambda_args is None:
            self.conv2 = nn.Conv2d(channels, channels, 3, inner, dilation, dilation, bias=False)
        else:
            shape = {"stride": inner, "dilation": dilation}
            self.conv2 = LambdaLayer(channels, norm_layer=norm, **shape, **lambda_args)
        self.bn2 = norm(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = norm(out_channels)
        self.act = build_activation_layer(act_cfg)
        self.se = None
        if se_ratio is not None and lambda_args is None:
            self.se = SqueezeExcitation(out_channels, max(1, round(out_channels * se_ratio)))
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            pool = []
            # At stride 1 the pooling does nothing, but mmseg's names count it.
            if avg_down:
                pool = [nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False)]
            self.downsample = nn.Sequential(
                *pool,
                nn.Conv2d(in_channels, out_channels, 1, 1 if pool else stride, bias=False),
                norm(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, 4 * channels, ceil(H / stride), ceil(W / stride))."""
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.se is not None:
            y = self.se(y)
        return self.act(y + (x if self.downsample is None else self.downsample(x)))


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
    _TIMM_CFG = {"source": f"https://{_RELEASE}", "license": "Apache-2.0"}
    _TIMM_CFG = IMAGENET | _TIMM_CFG | {"input_size": (3, 256, 256)}
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
        act_cfg = act_cfg or dict(type="ReLU", inplace=True)
        design: dict[str, Any] = dict(depth=depth, placement=placement, stem=stem, pool=pool)
        design |= dict(key_depth=key_depth, num_heads=num_heads, intra_depth=intra_depth)
        design |= dict(receptive_field=receptive_field, resolution=resolution, act_cfg=act_cfg)
        design |= dict(position_bias=position_bias, share_embeddings=share_embeddings)
        design |= dict(lambda_stages=lambda_stages, avg_down=avg_down, se_ratio=se_ratio)
        design = settings_of(arch or {}, ARCHS, design)
        if design["stem"] not in STEMS:
            raise ValueError(f"stem={design['stem']!r}: unknown; use {', '.join(STEMS)}")
        if style not in ("pytorch", "caffe"):
            raise ValueError(f"style={style!r}: unknown; use 'pytorch' or 'caffe'")
        strides, dilations = strides or (1, 2, 2, 2)[:num_stages], dilations or (1,) * num_stages
        if not len(strides) == len(dilations) == num_stages:
            raise ValueError(
                f"strides={tuple(strides)}, dilations={tuple(dilations)}: num_stages={num_stages} "
                "needs one number per stage"
            )
        channels = [width * EXPANSION for width in STAGE_WIDTHS[:num_stages]]
        totals = list(accumulate(strides, mul, initial=STEM_STRIDE))
        shared = (out_indices, frozen_stages, with_cp, num_classes, in_channels)
        self._set_options(arch, channels, totals[1:], *shared)
        self.norm_eval = norm_eval
        norm_cfg = norm_cfg or {"type": "BN", "requires_grad": True}

        self._build_stem(design["stem"], norm_cfg, design["act_cfg"])
        placed = lambda_blocks(design["depth"], design["lambda_stages"], design["placement"])
        counts = block_counts(design["depth"])
        widths = [STEM_WIDTH, *channels]
        for i in range(self.built):
            # As in mmsegmentation: the first block of a dilated stage has half the dilation.
            first = dilations[i] // 2 if contract_dilation and dilations[i] > 1 else dilations[i]
            spacing = [((1, 1), dilations[i])] * counts[i]
            caffe = style == "caffe"
            spacing[0] = ((strides[i], 1) if caffe else (1, strides[i]), first)
            stage = self._stage(i, widths[i], spacing, placed[i], totals[i], design, norm_cfg)
            self.add_module(f"layer{i + 1}", stage)
        self.fc = None if num_classes is None else nn.Linear(channels[-1], num_classes)
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
        for i, (before, after) in enumerate(pairwise((self.in_channels, *STEMS[stem]))):
            stride = 2 if i == 0 else 1
            self.stem.append(nn.Conv2d(before, after, 3, stride, padding=1, bias=False))
            self.stem.append(build_norm_layer(norm_cfg, after)[1])
            self.stem.append(build_activation_layer(act_cfg))

    @staticmethod
    def _stage(
        stage: int,
        in_channels: int,
        spacing: Sequence[tuple[tuple[int, int], int]],
        placed: Sequence[int],
        total_stride: int,
        design: dict,
        norm_cfg: dict,
    ) -> nn.Sequential:
        """Build a stage whose input has `total_stride`; `spacing` has every block's strides."""
        keys = ("key_depth", "num_heads", "intra_depth", "receptive_field", "position_bias", "pool")
        common = {key: design[key] for key in ("se_ratio", "avg_down", "act_cfg")}
        shared: dict[object, PositionEmbeddings | None] = {}
        blocks = nn.Sequential()
        for i, (strides, dilation) in enumerate(spacing):
            args = None
            if i in placed:
                # The lambda layer's input has the stride of the 1x1 convolution before it.
                stride, size = total_stride * strides[0], design["resolution"]
                if size is not None:
                    size = tuple(-(-length // stride) for length in size)
                if size is not None and dilation > 1:
                    raise ValueError(
                        f"dilations: {dilation} in stage {stage}; use 1 for lambda layers with a "
                        "resolution"
                    )
                args = {key: design[key] for key in keys}
                args |= {"resolution": size, "embeddings": shared.get(size)}
            block = Bottleneck(
                in_channels, STAGE_WIDTHS[stage], strides, dilation, args, norm_cfg, **common
            )
            if isinstance(block.conv2, LambdaLayer) and design["share_embeddings"] is not None:
                shared[size] = block.conv2.embeddings
            blocks.append(block)
            total_stride *= max(strides)
            in_channels = STAGE_WIDTHS[stage] * EXPANSION
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
        return [stem, *([f"layer{i + 1}"] for i in range(self.built))]

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map images (B, 3, H, W) to logits (B, num_classes) or a tuple of maps (B, C, h, w).

        Raises:
            ValueError: for another shape, or for images larger than `resolution`.
        """
        self._check_images(images)
        deep = hasattr(self, "stem")
        x = self.stem(images) if deep else self.act(self.bn1(self.conv1(images)))
        x = self.maxpool(x)
        maps = []
        for i in range(self.built):
            for block in getattr(self, f"layer{i + 1}"):
                x = self._run(block, x)
            if i in self.out_indices:
                maps.append(x)
        return tuple(maps) if self.fc is None else self.fc(x.mean(dim=(2, 3)))
