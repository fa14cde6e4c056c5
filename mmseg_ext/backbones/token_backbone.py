"""What the plain transformers share: a class token beside the patches, blocks, maps of tokens."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import Backbone
from mmseg_ext.layers.precision import autocast_disabled


class MLP(nn.Module):
    """Linear, GELU, linear, each linear map followed by dropout; on (..., `in_dim`)."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    """`x + f(norm(s x)) / s` for attention, then for the perceptron, with s = `scale_adjustment`.

    The norm takes s out again but for its epsilon, so in effect the branches weigh 1 / s.
    """

    def __init__(
        self,
        embed_dims: int,
        attention: nn.Module,
        mlp_ratio: float,
        drop_rate: float,
        drop_path_rate: float,
        norm_cfg: dict,
        scale_adjustment: float = 1.0,
    ):
        super().__init__()
        self.scale_adjustment = scale_adjustment
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = attention
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.mlp = MLP(embed_dims, int(embed_dims * mlp_ratio), drop_rate)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C) to the same."""
        s = self.scale_adjustment
        if s == 1:
            x = x + self.drop_path(self.attn(self.norm1(x)))
            return x + self.drop_path(self.mlp(self.norm2(x)))
        x = x + self.drop_path(self.attn(self.norm1(x * s)) / s)
        return x + self.drop_path(self.mlp(self.norm2(x * s)) / s)


def square_grid(img_size: int, stride: int) -> tuple[int, int]:
    """The grid of tokens of a square image."""
    if img_size <= 0 or img_size % stride != 0:
        raise ValueError(f"img_size must be a positive multiple of {stride}, not {img_size}")
    return img_size // stride, img_size // stride


def positions_at(table: Tensor, own: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(1, 1 + h w, C) of the grid `own` to (1, 1 + h w, C) of `grid`, the class token's first.

    Bicubic where the grids differ. Exported for any size it is interpolated in all of them: at its
    own nothing changes.
    """
    if not any(isinstance(n, torch.SymInt) for n in grid) and grid == own:
        return table
    first, rest = table[:, :1], table[:, 1:]
    rest = rest.transpose(1, 2).unflatten(2, own)  # (1, C, h, w)
    with autocast_disabled(rest):
        rest = F.interpolate(rest, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([first, rest.flatten(2).transpose(1, 2)], dim=1)


class TokenBackbone(Backbone):
    """A subclass has `embed`, `cls_token` (1, 1, C), `pos_embed` (1, 1 + h w, C) and its `grid`."""

    cls_token: nn.Parameter
    pos_embed: Tensor
    grid: tuple[int, int]

    def embed(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) to patches (B, C, h, w)."""
        raise NotImplementedError

    @property
    def stem_parts(self) -> list[str]:
        """Names of what `embed` uses."""
        raise NotImplementedError

    @property
    def parts(self) -> list[list[str]]:
        stem = [*self.stem_parts, "cls_token", "pos_embed", "pos_drop"]
        return [stem, *([f"blocks.{i}"] for i in range(self.built))]

    def _build_blocks(
        self,
        attentions: Sequence[Callable[[], nn.Module]],
        mlp_ratio: float,
        drop_rate: float,
        drop_path_rate: float,
        norm_cfg: dict,
        num_classes: int | None,
        scale_adjustment: float = 1.0,
    ) -> None:
        """`attentions` makes the attention of each block, those that are not built included."""
        depth, width = len(attentions), self.stage_channels[0]
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            Block(
                width,
                attentions[i](),
                mlp_ratio,
                drop_rate,
                drop_path_rate * i / max(depth - 1, 1),
                norm_cfg,
                scale_adjustment,
            )
            for i in range(self.built)
        )
        whole = self.built == depth
        self.norm = build_norm_layer(norm_cfg, width)[1] if whole else nn.Identity()
        self.head = None if num_classes is None else nn.Linear(width, num_classes)

    def _reset_parameters(self) -> None:
        """Truncated normal of deviation 0.02 for linear maps and the class token, zero biases."""
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Images (B, 3, H, W) to logits (B, num_classes) or a tuple of maps (B, C, h, w)."""
        self._check_images(images)
        patches = self.embed(images)  # (B, C, h, w)
        grid = (patches.shape[2], patches.shape[3])
        tokens = patches.flatten(2).transpose(1, 2)  # (B, h * w, C)
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        x = self.pos_drop(tokens + positions_at(self.pos_embed, self.grid, grid))  # (B, 1 + h w, C)
        maps = []
        for i, block in enumerate(self.blocks):
            x = self._run(block, x)
            if self.head is None and i in self.out_indices:
                out = self.norm(x) if i == len(self.stage_channels) - 1 else x
                maps.append(out[:, 1:].transpose(1, 2).unflatten(2, grid))  # (B, C, h, w)
        return tuple(maps) if self.head is None else self.head(self.norm(x)[:, 0])
