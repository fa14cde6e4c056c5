"""The attention blocks and heads that the cost table compares, each as its paper defines it.

Blocks map (B, C, H, W) to the same. Self-attention and double attention are written plainly from
their equations, external attention is our layer; the others are mmsegmentation's modules at the
settings of its own configs, without the 3x3 convolutions that lead into a head.

Paper figures are table 8 of arXiv 2105.02358 (input 1 x 512 x 128 x 128), in the convention of the
table that it extends (arXiv 2109.04553): parameters in units of 2^20, multiply-adds in units of
10^9, some truncated.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from mmcv.cnn import ConvModule, NonLocal2d
from mmseg.models.decode_heads.ann_head import APNB
from mmseg.models.decode_heads.apc_head import ACM
from mmseg.models.decode_heads.da_head import CAM, PAM
from mmseg.models.decode_heads.dm_head import DCM
from mmseg.models.decode_heads.ema_head import EMAModule
from mmseg.models.decode_heads.ham_head import Hamburger
from mmseg.models.decode_heads.isa_head import ISAHead
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext.inference.fusion import fuse_model
from mmseg_ext.layers.external_attention import ExternalAttention2d

_BN = {"type": "BN"}
_RELU = {"type": "ReLU"}
_CONV = {"conv_cfg": None, "norm_cfg": _BN, "act_cfg": _RELU}


class PublishedExternalAttention(ExternalAttention2d):
    """External attention in its published order of operations, whatever the size.

    With `second_conv` False it ends at the values, as in the paper's first version.
    """

    def __init__(self, channels: int, tied: bool = False, second_conv: bool = True):
        super().__init__(channels, tied=tied)
        if not second_conv:
            self.conv2 = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.published_order(x)


class PositionSelfAttention(nn.Module):
    """softmax(Q K^T) V over all positions with four 1x1 convolutions and a residual."""

    def __init__(self, channels: int):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Conv2d(channels, channels, 1, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (f(x).flatten(2) for f in (self.query, self.key, self.value))
        attention = (query.transpose(1, 2) @ key).softmax(dim=-1)  # (B, N, N)
        attended = value @ attention.transpose(1, 2)  # (B, C, N)
        return x + self.out(attended.view_as(x))


class DoubleAttention(nn.Module):
    """A2-Net, arXiv 1810.11579: gather C global descriptors, distribute them to the positions."""

    def __init__(self, channels: int):
        super().__init__()
        self.features, self.gather, self.distribute, self.out = (
            nn.Conv2d(channels, channels, 1, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).flatten(2)  # (B, C, N)
        gather = self.gather(x).flatten(2).softmax(dim=2)  # (B, C, N)
        distribute = self.distribute(x).flatten(2).softmax(dim=1)  # (B, C, N)
        descriptors = features @ gather.transpose(1, 2)  # (B, C, C)
        return x + self.out((descriptors @ distribute).view_as(x))


class DualAttention(nn.Module):
    """DANet, arXiv 1809.02983: mmseg's two attentions, each with its 3x3 convolution, summed."""

    def __init__(self, channels: int):
        super().__init__()
        self.position = PAM(channels, channels // 8)
        self.position_conv = ConvModule(channels, channels, 3, padding=1, norm_cfg=_BN)
        self.channel = CAM()
        self.channel_conv = ConvModule(channels, channels, 3, padding=1, norm_cfg=_BN)

    def forward(self, x: Tensor) -> Tensor:
        return self.position_conv(self.position(x)) + self.channel_conv(self.channel(x))


class ExpectationMaximization(nn.Module):
    """EMANet, arXiv 1907.13426: 64 bases, 3 steps, with the 1x1 convolutions around them."""

    def __init__(self, channels: int):
        super().__init__()
        # No gradient reaches it through the iterations: mmseg freezes it too.
        self.conv_in = nn.Conv2d(channels, channels, 1).requires_grad_(False)
        self.attention = EMAModule(channels, num_bases=64, num_stages=3, momentum=0.1)
        self.conv_out = ConvModule(channels, channels, 1, norm_cfg=_BN, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv_out(F.relu(self.attention(self.conv_in(x)))))


class Summed(nn.Module):
    """Branches that read the same map, summed; a head concatenates them before a 3x3."""

    def __init__(self, branches: list[nn.Module]):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return sum(branch(x) for branch in self.branches)


class InterlacedSparse(nn.Module):
    """ISANet, arXiv 1907.12273: attention among 8x8 neighbours and among their representatives."""

    def __init__(self, channels: int):
        super().__init__()
        self.head = ISAHead(
            isa_channels=channels // 2,
            in_channels=channels,
            channels=channels,
            num_classes=2,
            norm_cfg=_BN,
        )
        self.head.in_conv = nn.Identity()
        self.head.conv_seg = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head([x])


class PaperCost(NamedTuple):
    """Parameters in units of 2^20 and multiply-adds in units of 10^9, as the paper prints them."""

    parameters: float
    multiply_adds: float


class Entry(NamedTuple):
    """One row: how to build the module, the paper's figures where it has them, and a remark.

    A fused module is for inference only; its weights are buffers.
    """

    build: Callable[[], nn.Module]
    paper: PaperCost | None = None
    remark: str = ""
    fused: bool = False


def criss_cross_attention() -> type[nn.Module] | None:
    """mmcv's criss-cross attention; None where mmcv has no compiled ops, whose package holds it."""
    extension = importlib.util.find_spec("mmcv._ext")
    if extension is None or not extension.has_location:  # operators_in_pytorch has no file of it
        return None
    from mmcv.ops import CrissCrossAttention

    return CrissCrossAttention


def attention_blocks(channels: int = 512) -> dict[str, Entry]:
    """Every block of the table at `channels` channels, by name."""
    context = functools.partial(ACM, fusion=True, in_channels=channels, channels=channels, **_CONV)
    filters = functools.partial(DCM, fusion=True, in_channels=channels, channels=channels, **_CONV)
    blocks = {
        "self-attention": Entry(lambda: PositionSelfAttention(channels), PaperCost(1.00, 292)),
        "dual attention (DA)": Entry(
            lambda: DualAttention(channels),
            PaperCost(4.82, 79.5),
            "paper's multiply-adds leave out most of the products of attention",
        ),
        "double attention (A2)": Entry(lambda: DoubleAttention(channels), PaperCost(1.01, 25.7)),
        "adaptive pyramid context (APC)": Entry(
            lambda: Summed([context(scale) for scale in (1, 2, 3, 6)]),
            PaperCost(2.03, 17.6),
            "mmseg's four context modules at 512 channels are larger than the paper's block",
        ),
        "dynamic multi-scale filters (DM)": Entry(
            lambda: Summed([filters(size) for size in (1, 3, 5, 7)]), PaperCost(3.00, 35.1)
        ),
        "Hamburger (NMF)": Entry(
            lambda: Hamburger(channels, {"MD_R": 64}, _BN), PaperCost(0.50, 17.6)
        ),
        "non-local": Entry(
            lambda: NonLocal2d(channels, reduction=2, norm_cfg=_BN, mode="embedded_gaussian")
        ),
        "expectation-maximization (EMA)": Entry(lambda: ExpectationMaximization(channels)),
        "asymmetric non-local (ANN)": Entry(
            lambda: APNB(channels, channels // 2, channels, (1,), (1, 3, 6, 8), **_CONV)
        ),
        "interlaced sparse (ISA)": Entry(lambda: InterlacedSparse(channels)),
    }
    criss_cross = criss_cross_attention()
    if criss_cross is not None:
        blocks["criss-cross (CC), twice"] = Entry(
            lambda: nn.Sequential(*[criss_cross(channels)] * 2), None, "one module applied twice"
        )
    return blocks | {
        "EA, paper's first version": Entry(
            lambda: PublishedExternalAttention(channels, second_conv=False),
            None,
            "no second 1x1 convolution",
        ),
        "EA, one memory": Entry(
            lambda: PublishedExternalAttention(channels, tied=True),
            PaperCost(0.55, 9.2),
            "the paper's figures leave out the product with the values",
        ),
        "EA, plain": Entry(
            lambda: PublishedExternalAttention(channels), None, "the published block"
        ),
        "EA, composed": Entry(
            lambda: ExternalAttention2d(channels), None, "its composed maps are no modules"
        ),
        "EA, fused": Entry(lambda: ExternalAttention2d(channels).eval().fuse(), fused=True),
    }


# The crops' feature maps at output stride 8, and the classes.
CROPS = {
    "VOC": ((65, 65), 21),
    "ADE20K": ((64, 64), 150),
    "Cityscapes": ((97, 97), 19),
}


class HeadOnMap(nn.Module):
    """A decode head on one feature map; a head that reads several gets its first channels each."""

    def __init__(self, config: dict):
        super().__init__()
        self.head = MODELS.build(config)
        widths = self.head.in_channels
        self.widths = [widths] if isinstance(widths, int) else widths

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.head([x[:, :width] for width in self.widths])


def whole_heads(num_classes: int, in_channels: int = 2048) -> dict[str, Entry]:
    """mmsegmentation's heads at the settings of its configs, and ours, on maps of `in_channels`."""

    def head(kind: str, remark: str = "", fused: bool = False, **settings) -> Entry:
        config = {
            "type": kind,
            "in_channels": in_channels,
            "in_index": 0,
            "channels": 512,
            "num_classes": num_classes,
            "norm_cfg": _BN,
            **settings,
        }

        def build() -> nn.Module:
            module = HeadOnMap(config)
            return fuse_model(module) if fused else module

        return Entry(build, None, remark, fused)

    heads = {
        "FCN": head("FCNHead", num_convs=2, concat_input=True),
        "PSP": head("PSPHead"),
        "DA": head("DAHead", pam_channels=64),
        "non-local": head("NLHead"),
        "ANN": head(
            "ANNHead",
            "also reads a map of half the channels",
            in_channels=[in_channels // 2, in_channels],
            in_index=[0, 1],
            project_channels=256,
        ),
        "APC": head("APCHead"),
        "DM": head("DMHead"),
        "EMA": head(
            "EMAHead",
            channels=256,
            ema_channels=512,
            num_bases=64,
            num_stages=3,
            concat_input=False,
        ),
        "ISA": head("ISAHead", isa_channels=256),
        "light Ham": head(
            "LightHamHead",
            "1x1 convolutions where the others have 3x3",
            in_channels=[in_channels],
            in_index=[0],
            ham_kwargs={"MD_R": 64},
        ),
    }
    if criss_cross_attention() is not None:
        heads["CC"] = head("CCHead")
    return heads | {
        "DANet with EA": head("DANetEAHead"),
        "EA": head("EAHead", channels=256),
        "EA, fused": head("EAHead", fused=True, channels=256),
    }
