"""The base class of the plain transformers: patches and a class token, blocks, feature maps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import (
    Backbone,
    draw_divisors,
    init_linear,
    kept_branches,
    planned_drop_rates,
)
from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.submodules import does_more_than_forward


class MLP(nn.Module):
    """Linear, GELU, dropout, linear, dropout on the last dimension."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    """x + f(norm(s x)) / s, with f the attention, then the MLP, and s = `scale_adjustment`.

    A layer norm removes the inner s except for its epsilon, so the residual branches weigh 1 / s.
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

    def forward(self, x: Tensor, divisors: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Map tokens (B, N, C) to (B, N, C).

        `divisors` (B, 1, 1) of both branches replace `drop_path` and the division by s.
        """
        if divisors is not None:
            x = x + self.attn(self._scaled(x, self.norm1)) / divisors[0]
            return x + self.mlp(self._scaled(x, self.norm2)) / divisors[1]
        weight = 1 / self.scale_adjustment
        x = torch.add(x, self.drop_path(self.attn(self._scaled(x, self.norm1))), alpha=weight)
        return torch.add(x, self.drop_path(self.mlp(self._scaled(x, self.norm2))), alpha=weight)

    def _scaled(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Return norm(s x)."""
        s = self.scale_adjustment
        if s == 1:
            return norm(x)
        if type(norm) is not nn.LayerNorm or does_more_than_forward(norm):
            return norm(x * s)
        # A layer norm with this epsilon does not need the product. If s is a power of two, the
        # result is the same bit by bit.
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps / s**2)


def square_grid(img_size: int, stride: int) -> tuple[int, int]:
    """Return the grid of tokens of a square image.

    Raises:
        ValueError: if `img_size` is not a positive multiple of `stride`.
    """
    if img_size <= 0 or img_size % stride != 0:
        raise ValueError(f"img_size={img_size}: not a positive multiple of {stride}")
    return img_size // stride, img_size // stride


def positions_at(table: Tensor, own: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Resize positions bicubically from the grid `own` to `grid`.

    Args:
        table: (1, 1 + h * w, C) with (h, w) = `own`; the first position is the class token's.

    Returns:
        (1, 1 + h * w, C) with (h, w) = `grid`.
    """
    # A program that is exported for any size resizes at its own size, too, with the same result.
    if not any(isinstance(n, torch.SymInt) for n in grid) and grid == own:
        return table
    first, rest = table[:, :1], table[:, 1:].transpose(1, 2).unflatten(2, own)  # (1, C, h, w)
    # Products instead of `F.interpolate`, whose backward is not deterministic on CUDA. In float64
    # there, because TF32 would round float32.
    dtype = torch.float64 if table.is_cuda else full_precision(table.dtype)
    rows = _bicubic_matrix(own[0], grid[0], dtype, table.device)
    columns = _bicubic_matrix(own[1], grid[1], dtype, table.device)
    with autocast_disabled(table):
        rest = (rows @ rest.to(dtype) @ columns.t()).to(table.dtype)  # (1, C, h, w)
    return torch.cat([first, rest.flatten(2).transpose(1, 2)], dim=1)


def _bicubic_matrix(n: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix (size, n) that resizes one axis as `F.interpolate` does."""
    identity = torch.eye(n, dtype=dtype, device=device)[None, None]
    return F.interpolate(identity, (size, n), mode="bicubic", align_corners=False)[0, 0]


class TokenBackbone(Backbone):
    """A transformer on patches and a class token.

    A subclass defines the `stem`, `cls_token` (1, 1, C), and `pos_embed` (1, 1 + h * w, C) for
    `grid` = (h, w).
    """

    stem: str  # the name of the module that maps images (B, 3, H, W) to patches (B, C, h, w)
    cls_token: nn.Parameter
    pos_embed: Tensor
    grid: tuple[int, int]

    @property
    def parts(self) -> list[list[str]]:
        stem = [self.stem, "cls_token", "pos_embed", "pos_drop"]
        blocks = [[f"blocks.{i}"] for i in range(self.built)]
        return [stem, *blocks]

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
        """Build the first `self.built` blocks, and initialize the linear layers of all modules.

        `attentions` has an entry for every block.
        """
        depth, width = len(attentions), self.stage_channels[0]
        self._rates = planned_drop_rates(drop_path_rate, depth)[: self.built]
        self.register_buffer("keep", kept_branches(self._rates), persistent=False)
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList()
        for build_attention, path_rate in zip(attentions[: self.built], self._rates, strict=True):
            block = Block(
                width,
                build_attention(),
                mlp_ratio,
                drop_rate,
                path_rate,
                norm_cfg,
                scale_adjustment,
            )
            self.blocks.append(block)
        # The norm belongs to the last block. Without that block it would get no gradient.
        self.norm = nn.Identity()
        if self.built == depth:
            self.norm = build_norm_layer(norm_cfg, width)[1]
        self.head = None
        if num_classes is not None:
            self.head = nn.Linear(width, num_classes)
        nn.init.normal_(self.cls_token, std=0.02)
        self.apply(init_linear)

    def _divisors(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return divisors of the branches of each block, or [] if the blocks call `drop_path`.

        They start fewer operators, which only a GPU needs. On a CPU the random numbers, and so the
        results of trainings, stay the same.
        """
        if not x.is_cuda:
            return []
        blocks: list[Any] = list(self.blocks)
        if not all(isinstance(block, Block) for block in blocks):
            return []  # one of them was replaced, and may not take divisors
        scale = blocks[0].scale_adjustment
        return draw_divisors(blocks, self._rates, self.get_buffer("keep"), x, scale)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map images (B, 3, H, W) to logits (B, num_classes) or a tuple of maps (B, C, h, w)."""
        self._check_images(images)
        patches = getattr(self, self.stem)(images)  # (B, C, h, w)
        grid = (patches.shape[2], patches.shape[3])
        tokens = patches.flatten(2).transpose(1, 2)  # (B, h * w, C)
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        x = self.pos_drop(tokens + positions_at(self.pos_embed, self.grid, grid))  # (B, 1 + h w, C)
        maps = []
        divisors = self._divisors(x)
        for i, block in enumerate(self.blocks):
            if divisors:
                x = self._run(block, x, divisors[i])
            else:
                x = self._run(block, x)
            if self.head is None and i in self.out_indices:
                out = self.norm(x) if i == len(self.stage_channels) - 1 else x
                maps.append(out[:, 1:].transpose(1, 2).unflatten(2, grid))  # (B, C, h, w)
        return tuple(maps) if self.head is None else self.head(self.norm(x)[:, 0])
