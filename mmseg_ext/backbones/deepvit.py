"""DeepViT: a deep, plain vision transformer with re-attention.

Paper: DeepViT: Towards Deeper Vision Transformer, arXiv:2103.11886.
Published code: zhoudaquan/dvit_repo (1ccb152), `models/deep_vision_transformer.py` and
`models/layers.py`. Where they differ from the paper, this follows the code: 'l' has 58.88 M
parameters, the paper says 55 M.

Deviations:

- Feature maps are taken after the blocks in `out_indices`, without the class token.
- Images of any size: they are padded at the right and bottom to a multiple of 16, and learned
  positions are resized bicubically if the grid differs from the grid of `img_size`.
- If the number of tokens differs from `img_size`, the normalization of attention maps is rescaled
  (`rescale_norm`, see `ReAttention`).
- Blocks without re-attention use PyTorch's fused attention.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import IMAGENET, OutIndices, Settings, settings_of
from mmseg_ext.backbones.token_backbone import TokenBackbone, square_grid
from mmseg_ext.layers.re_attention import ReAttention, SelfAttention

PATCH = 16
STEM_CHANNELS = 64


def _padded(images: Tensor) -> Tensor:
    """Pad images (B, C, H, W) at the right and bottom to multiples of 16."""
    height, width = images.shape[2:]
    # Not -width % PATCH: torch.compile with dynamic sizes cannot prove bounds of that modulus.
    right = (PATCH - width % PATCH) % PATCH
    bottom = (PATCH - height % PATCH) % PATCH
    return F.pad(images, (0, right, 0, bottom))


class PatchEmbed(nn.Module):
    """A convolution with kernel and stride 16, on padded images, to (B, embed_dims, h, w)."""

    def __init__(self, in_channels: int, embed_dims: int):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, PATCH, PATCH)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(_padded(images))


class ConvPatchEmbed(nn.Module):
    """Convolutions with a total stride of 16, on padded images, to (B, embed_dims, h, w)."""

    def __init__(self, in_channels: int, embed_dims: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, STEM_CHANNELS, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS)
        self.conv2 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(STEM_CHANNELS)
        self.proj = nn.Conv2d(STEM_CHANNELS, embed_dims, PATCH // 2, PATCH // 2)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(_padded(images))))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.proj(x)


class DeepViT(TokenBackbone):
    """DeepViT, for images (B, 3, H, W) of any size.

    Returns a tuple of maps (B, C, ceil(H / 16), ceil(W / 16)), one for each block in `out_indices`.
    Only the map of the last block is normalized. Use a neck to build several levels. With
    `num_classes`, returns logits (B, num_classes) from the class token.

    `sync_bn='torch'` in a config synchronizes the batch norms, which are in the convolutional patch
    embedding and in re-attention.

    Args:
        arch: '16b', '24b' or '32b' (width 384, re-attention in every block); 's' or 'l'
            (convolutional patch embedding, re-attention in the last 5 of 16 and the last 12 of 32
            blocks, residual branches doubled); or a dict with some of the keys of `arch_settings`
            entries, completed from '16b'. `re_attention_blocks` counts from the end; None means
            every block.
        img_size: side of the square images that the positions are learned for (the pretraining's),
            a multiple of 16.
        re_attention: False uses plain attention in every block and, as published, no
            `scale_adjustment`.
        attention_norm: 'batch' or 'layer', the `norm` of `ReAttention`.
        scale_adjustment: replaces the value of `arch`, with and without `re_attention`.
        rescale_norm: adapt the normalization of attention maps to the number of tokens.
        out_indices, frozen_stages, with_cp, num_classes, init_cfg: see `Backbone`; a stage is a
            block. If `out_indices` is None, it is the end of each quarter of the depth.
        drop_rate: dropout after the positions, after the attention and in the MLPs.
        attn_drop_rate: dropout of the attention maps before they are mixed.
        drop_path_rate: stochastic depth of the last block; the rate rises linearly from 0. The
            published training uses 0.2.
        norm_cfg: norm of the tokens; None is layer norm with the published epsilon of 1e-6.
        in_channels: channels of the image.

    Raises:
        ValueError: for an unknown arch, `re_attention_blocks` outside [0, depth], an `img_size`
            that is not a multiple of 16, and as `Backbone`.
    """

    arch_settings = {
        "16b": {
            "embed_dims": 384,
            "depth": 16,
            "num_heads": 12,
            "mlp_ratio": 3,
            "conv_patch_embed": False,
            "re_attention_blocks": None,
            "transform_scale": False,
            "scale_adjustment": 1.0,
        },
        "24b": {"depth": 24},
        "32b": {"depth": 32},
        "s": {
            "embed_dims": 396,
            "conv_patch_embed": True,
            "re_attention_blocks": 5,
            "transform_scale": True,
            "scale_adjustment": 0.5,
        },
        "l": {
            "embed_dims": 420,
            "depth": 32,
            "conv_patch_embed": True,
            "re_attention_blocks": 12,
            "scale_adjustment": 0.5,
        },
    }

    stem = "patch_embed"

    _SOURCE = "24b, 32b, s and l in the README of https://github.com/zhoudaquan/dvit_repo"
    _NORMALIZATION = {"mean": (127.5,) * 3, "std": (127.5,) * 3}
    default_cfgs = {"": IMAGENET | _NORMALIZATION | {"source": _SOURCE, "license": "MIT"}}

    def __init__(
        self,
        arch: str | Settings = "16b",
        img_size: int = 224,
        re_attention: bool = True,
        attention_norm: str = "batch",
        scale_adjustment: float | None = None,
        rescale_norm: bool = True,
        num_classes: int | None = None,
        out_indices: OutIndices | None = None,
        frozen_stages: int = -1,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        norm_cfg: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
        in_channels: int = 3,
    ):
        super().__init__(init_cfg=init_cfg)
        settings = settings_of(arch, self.arch_settings, self.arch_settings["16b"])
        depth, self.embed_dims = settings["depth"], settings["embed_dims"]
        if out_indices is None:
            out_indices = [max(depth * quarter // 4, 1) - 1 for quarter in (1, 2, 3, 4)]
        self._set_options(
            arch,
            channels=[self.embed_dims] * depth,
            strides=[PATCH] * depth,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            num_classes=num_classes,
            in_channels=in_channels,
        )
        mixing_blocks = settings["re_attention_blocks"]  # the last ones
        if mixing_blocks is None:
            mixing_blocks = depth
        if not 0 <= mixing_blocks <= depth:
            raise ValueError(f"re_attention_blocks={mixing_blocks}: not in [0, {depth}]")
        if not re_attention:
            mixing_blocks = 0
        if scale_adjustment is None:
            scale_adjustment = settings["scale_adjustment"] if re_attention else 1.0
        self.grid = square_grid(img_size, PATCH)
        tokens = math.prod(self.grid) + 1  # with the class token

        embed = ConvPatchEmbed if settings["conv_patch_embed"] else PatchEmbed
        self.patch_embed = embed(in_channels, self.embed_dims)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, self.embed_dims))
        options: dict[str, Any] = {
            "embed_dim": self.embed_dims,
            "num_heads": settings["num_heads"],
            "attn_drop": attn_drop_rate,
            "proj_drop": drop_rate,
        }
        plain = partial(SelfAttention, **options)
        mixing = partial(
            ReAttention,
            **options,
            norm=attention_norm,
            transform_scale=settings["transform_scale"],
            reference_tokens=tokens if rescale_norm else None,
        )
        self._build_blocks(
            [plain] * (depth - mixing_blocks) + [mixing] * mixing_blocks,
            mlp_ratio=settings["mlp_ratio"],
            drop_rate=drop_rate,
            drop_path_rate=drop_path_rate,
            norm_cfg=norm_cfg or {"type": "LN", "eps": 1e-6},
            num_classes=num_classes,
            scale_adjustment=scale_adjustment,
        )
        nn.init.normal_(self.pos_embed, std=0.02)
        self._freeze_stages()
