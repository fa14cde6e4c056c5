"""EAMLP: a Tokens-to-Token vision transformer with multi-head external attention.

Papers: Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks,
arXiv:2105.02358, section 4.4; Tokens-to-Token ViT, arXiv:2101.11986.
Published code: MenghaoGuo/EANet (59c03cb), `EAMLP/models/t2t_vit.py`, `transformer_block.py` and
`token_performer.py`.

Deviations:

- Feature maps are taken after the blocks in `out_indices`, without the class token.
- Images of any size: the sinusoidal positions, a table over the flattened grid of `img_size`, are
  resized bicubically if the grid differs.
- The two memories of a token module start equal, as published, but do not share storage.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import IMAGENET, OutIndices, Settings, settings_of
from mmseg_ext.backbones.token_backbone import MLP, TokenBackbone, square_grid
from mmseg_ext.layers.external_attention import double_normalize
from mmseg_ext.layers.token_external_attention import MultiHeadExternalAttention

TOKEN_DIM = 64
TOKEN_MEMORY_SIZE = 128
SOFT_SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))  # kernel, stride and padding of each
STRIDE = math.prod(stride for _, stride, _ in SOFT_SPLITS)


def sinusoidal_positions(length: int, dim: int) -> Tensor:
    """Return the table (1, length, dim), sines in even and cosines in odd columns, in float32."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    column = torch.arange(dim, dtype=torch.float64)
    angle = position / 10000.0 ** (2 * (column // 2) / dim)  # (length, dim)
    table = torch.where(column % 2 == 0, angle.sin(), angle.cos())
    return table.float().unsqueeze(0)  # (1, length, dim)


class TokenExternalAttention(nn.Module):
    """Single-head external attention that projects tokens first; the residual is the projection."""

    def __init__(self, in_dim: int, dim: int, attn_drop: float, proj_drop: float):
        super().__init__()
        self.q_linear = nn.Linear(in_dim, dim)
        self.linear_0 = nn.Linear(dim, TOKEN_MEMORY_SIZE, bias=False)
        self.linear_1 = nn.Linear(TOKEN_MEMORY_SIZE, dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, in_dim) to (B, N, dim)."""
        narrow = self.q_linear(x)
        attention = double_normalize(self.linear_0(narrow), positions=1, slots=-1)  # (B, N, S)
        attention = self.attn_drop(attention)
        return narrow + self.proj_drop(self.proj(self.linear_1(attention.to(narrow.dtype))))


class TokenModule(nn.Module):
    """External attention and an MLP, each after a norm: tokens (B, N, in_dim) to (B, N, dim)."""

    def __init__(self, in_dim: int, dim: int, norm_cfg: dict):
        super().__init__()
        self.norm1 = build_norm_layer(norm_cfg, in_dim)[1]
        self.attn = TokenExternalAttention(in_dim, dim, attn_drop=0.1, proj_drop=0.1)
        self.norm2 = build_norm_layer(norm_cfg, dim)[1]
        self.mlp = MLP(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokensToToken(nn.Module):
    """Three overlapping splits into patches, with a token module after the first and the second."""

    def __init__(self, in_channels: int, embed_dims: int, norm_cfg: dict):
        super().__init__()
        kernels = [kernel * kernel for kernel, _, _ in SOFT_SPLITS]
        self.attention1 = TokenModule(in_channels * kernels[0], TOKEN_DIM, norm_cfg)
        self.attention2 = TokenModule(TOKEN_DIM * kernels[1], TOKEN_DIM, norm_cfg)
        self.project = nn.Linear(TOKEN_DIM * kernels[2], embed_dims)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to tokens (B, C, h, w)."""
        x = images
        encoders = (self.attention1, self.attention2, self.project)
        for (kernel, stride, padding), encode in zip(SOFT_SPLITS, encoders, strict=True):
            # The size of the result of a convolution.
            height = (x.shape[2] + 2 * padding - kernel) // stride + 1
            width = (x.shape[3] + 2 * padding - kernel) // stride + 1
            x = F.unfold(x, kernel, padding=padding, stride=stride)  # (B, C * k * k, h * w)
            # A copy, since exported programs for any size cannot multiply a transposed tensor.
            tokens = encode(x.transpose(1, 2).contiguous())  # (B, h * w, C)
            x = tokens.transpose(1, 2).unflatten(2, (height, width))  # (B, C, h, w)
        return x


class EAMLP(TokenBackbone):
    """EAMLP for images (B, 3, H, W) of any size from 16x16.

    Returns a tuple of maps (B, C, H / 16, W / 16), one for each block in `out_indices`. Only the
    map of the last block is normalized. With `num_classes`, returns logits (B, num_classes) from
    the class token.

    Args:
        arch: a key of `arch_settings`, or a dict with some of the keys of its entries, completed
            from '14'.
        img_size: side of the square images that the position table is computed for, a multiple of
            16. Use the pretraining's: 224, or 384 for the published EAMLP-7 weights.
        out_indices, frozen_stages, with_cp, num_classes, init_cfg: see `Backbone`; a stage is a
            block, and the stem is the token modules and the class token.
        drop_rate: dropout after the positions, in the MLPs and after the attention.
        attn_drop_rate: dropout of the attention maps. The token modules use 0.1, as published.
        drop_path_rate: stochastic depth of the last block; the rate rises linearly from 0. The
            published training uses 0.1.
        norm_cfg: norm of the tokens; None is layer norm.
        in_channels: channels of the image.

    Raises:
        ValueError: for an unknown arch, an `img_size` that is not a multiple of 16, and as
            `Backbone`.
    """

    arch_settings = {
        "7": {"embed_dims": 256, "depth": 7, "num_heads": 4, "mlp_ratio": 2},
        "10": {"embed_dims": 256, "depth": 10, "num_heads": 4, "mlp_ratio": 2},
        "12": {"embed_dims": 256, "depth": 12, "num_heads": 4, "mlp_ratio": 2},
        "14": {"embed_dims": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3},
        "19": {"embed_dims": 448, "depth": 19, "num_heads": 7, "mlp_ratio": 3},
        "24": {"embed_dims": 512, "depth": 24, "num_heads": 8, "mlp_ratio": 3},
    }

    stem = "tokens_to_token"

    _SOURCE = "folder EAMLP/EAMLP_7_384 of https://github.com/MenghaoGuo/EANet"
    _PUBLISHED = {"input_size": (3, 384, 384), "source": _SOURCE, "license": "Clear BSD"}
    default_cfgs = {"": IMAGENET, "7": IMAGENET | _PUBLISHED}

    def __init__(
        self,
        arch: str | Settings = "14",
        img_size: int = 224,
        num_classes: int | None = None,
        out_indices: OutIndices = -1,
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
        settings = settings_of(arch, self.arch_settings, self.arch_settings["14"])
        depth, self.embed_dims = settings["depth"], settings["embed_dims"]
        self._set_options(
            arch,
            channels=[self.embed_dims] * depth,
            strides=[STRIDE] * depth,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            num_classes=num_classes,
            in_channels=in_channels,
        )
        self.grid = square_grid(img_size, STRIDE)
        norm_cfg = norm_cfg or {"type": "LN"}

        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
        self.tokens_to_token = TokensToToken(in_channels, self.embed_dims, norm_cfg)
        positions = sinusoidal_positions(math.prod(self.grid) + 1, self.embed_dims)
        self.register_buffer("pos_embed", positions, persistent=False)
        attention = partial(
            MultiHeadExternalAttention,
            self.embed_dims,
            settings["num_heads"],
            attn_drop=attn_drop_rate,
            proj_drop=drop_rate,
        )
        self._build_blocks(
            [attention] * depth,
            mlp_ratio=settings["mlp_ratio"],
            drop_rate=drop_rate,
            drop_path_rate=drop_path_rate,
            norm_cfg=norm_cfg,
            num_classes=num_classes,
        )
        for tokens in (self.tokens_to_token.attention1, self.tokens_to_token.attention2):
            tokens.attn.linear_0.weight.data.copy_(tokens.attn.linear_1.weight.t())
        self._freeze_stages()

    def _load_from_state_dict(self, *args) -> None:
        """Load the weights, and compute the positions, which a model from `meta` lacks."""
        super()._load_from_state_dict(*args)
        with torch.device("cpu"):  # not in the context of the caller
            positions = sinusoidal_positions(*self.pos_embed.shape[1:])
        self.pos_embed = positions.to(self.cls_token)
