"""RMT: four stages of Manhattan attention at strides 4, 8, 16 and 32.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523.
Published code: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py` (features) and
`classfication_release/RMT.py` (classifier). This follows the code, which produced the published
weights, where the paper differs:

- the stem has four convolutions, not five;
- the feed-forward network has a depthwise convolution;
- stage 3 of `tiny` uses attention over the full map.

Deviations: none in the results. Feature maps are channels-last throughout; the layers' deviations
are in `mmseg_ext.layers.manhattan_attention`.
"""

from itertools import pairwise
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import (
    IMAGENET,
    Backbone,
    OutIndices,
    Settings,
    draw_divisors,
    init_linear,
    kept_branches,
    planned_drop_rates,
    settings_of,
)
from mmseg_ext.layers.input_shapes import channels_first, channels_last
from mmseg_ext.layers.manhattan_attention import Decay, ManhattanBlock, takes_terms
from mmseg_ext.layers.precision import compute_dtype

# The lists have one entry per stage.
_TINY: dict[str, Any] = {
    "depths": (2, 2, 8, 2),
    "embed_dims": (64, 128, 256, 512),
    "num_heads": (4, 4, 8, 16),
    "ffn_ratios": (3, 3, 3, 3),  # hidden width of the feed-forward network over the width
    "decay_ranges": (4, 4, 6, 6),  # see `ManhattanAttention`
    "decomposed": (True, True, False, False),  # attention along W, then H; else the full map
    "layer_scales": (None, None, None, None),  # initial values; None: no layer scale
    "drop_path_rate": 0.1,
}
_SMALL = _TINY | {
    "depths": (3, 4, 18, 4),
    "ffn_ratios": (4, 4, 3, 3),
    "decomposed": (True, True, True, False),
    "drop_path_rate": 0.15,
}
_BASE = _SMALL | {
    "depths": (4, 8, 25, 8),
    "embed_dims": (80, 160, 320, 512),
    "num_heads": (5, 5, 10, 16),
    "decay_ranges": (5, 5, 6, 6),
    "layer_scales": (None, None, 1e-6, 1e-6),
    "drop_path_rate": 0.4,
}
_LARGE = _BASE | {
    "embed_dims": (112, 224, 448, 640),
    "num_heads": (7, 7, 14, 20),
    "decay_ranges": (6, 6, 6, 6),
    "drop_path_rate": 0.5,
}
ARCHS = {"tiny": _TINY, "small": _SMALL, "base": _BASE, "large": _LARGE}

_DECAY_START = 2.0
_STEM_STRIDE = 4
_CLASSIFIER_WIDTH = 1024


def _stem(in_channels: int, width: int, norm_cfg: dict) -> nn.Sequential:
    """Return four 3x3 convolutions that map (B, C, H, W) to (B, width, H / 4, W / 4)."""
    channels = (in_channels, width // 2, width // 2, width, width)
    layers: list[nn.Module] = []
    for i in range(4):
        stride = 2 if i % 2 == 0 else 1
        layers.append(nn.Conv2d(channels[i], channels[i + 1], 3, stride, 1))
        layers.append(build_norm_layer(norm_cfg, channels[i + 1])[1])
        layers.append(nn.GELU())
    return nn.Sequential(*layers[:-1])  # no activation after the last norm


class _Classifier(nn.Module):
    """Linear, batch norm, SiLU, mean over positions, linear: (B, C, H, W) to (B, num_classes)."""

    def __init__(self, embed_dim: int, num_classes: int, norm_cfg: dict):
        super().__init__()
        self.proj = nn.Linear(embed_dim, _CLASSIFIER_WIDTH)
        self.norm = build_norm_layer(norm_cfg, _CLASSIFIER_WIDTH)[1]
        self.act = nn.SiLU()
        self.head = nn.Linear(_CLASSIFIER_WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(channels_first(self.proj(channels_last(x)))))
        return self.head(x.mean((2, 3)))


class RMT(Backbone):
    """RMT for images (B, 3, H, W) of any size.

    Returns a tuple of maps (B, C_i, ceil(H / s), ceil(W / s)) with s = 4, 8, 16, 32, one for each
    stage in `out_indices`. Each map passes through its own layer norm (eps 1e-5), as in the
    published segmentation code. With `num_classes`, returns the logits (B, num_classes) of the
    published classifier and ignores `out_indices`.

    Args:
        arch: a key of `ARCHS`, or a dict with some of the keys of its entries, completed
            from 'tiny'.
        in_channels: channels of the image.
        out_indices, frozen_stages, with_cp, norm_cfg, num_classes, init_cfg: see `Backbone`. The
            downsampling before a stage is frozen with the stage.
        drop_path_rate: stochastic depth of the last block; the rate rises linearly from 0. None
            uses the rate of `arch`.
        decay: decay of the attention, see `ManhattanAttention`; None is the paper's ablation.
        lce: local context enhancement in the attention; False is the paper's ablation.
        cpe: conditional position encoding; False is the paper's ablation.

    Raises:
        ValueError: if the lists in `arch` have different lengths, and as `Backbone`.
    """

    arch_settings = ARCHS
    default_cfgs = {"": IMAGENET | {"source": "README of https://github.com/qhfan/RMT"}}
    published_names = {r"patch_embed\.": "rmt"}

    def __init__(
        self,
        arch: str | Settings = "tiny",
        in_channels: int = 3,
        out_indices: OutIndices = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        norm_cfg: dict | None = None,
        drop_path_rate: float | None = None,
        decay: Decay | None = "logit",
        lce: bool = True,
        cpe: bool = True,
        num_classes: int | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(init_cfg)
        settings = settings_of(arch, ARCHS, ARCHS["tiny"])
        lengths = {key: len(settings[key]) for key in settings if key != "drop_path_rate"}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"arch: lists of different lengths {lengths}; use one entry per stage")
        depths = settings["depths"]
        self._set_options(
            arch,
            channels=settings["embed_dims"],
            strides=[_STEM_STRIDE * 2**i for i in range(len(depths))],
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            num_classes=num_classes,
            in_channels=in_channels,
        )
        norm_cfg = norm_cfg or {"type": "BN"}
        widths = self.stage_channels[: self.built]
        self.stem = _stem(in_channels, widths[0], norm_cfg)
        self.downsamples = nn.ModuleList()
        for before, after in pairwise(widths):
            layers = nn.Sequential()  # (B, before, H, W) to (B, after, H / 2, W / 2)
            layers.add_module("conv", nn.Conv2d(before, after, 3, 2, 1))
            # The published recipe excludes parameters with 'norm' in their name from weight decay.
            layers.add_module("norm", build_norm_layer(norm_cfg, after)[1])
            self.downsamples.append(layers)
        rate = settings["drop_path_rate"] if drop_path_rate is None else drop_path_rate
        rates = planned_drop_rates(rate, sum(depths))
        self.stages = nn.ModuleList()
        self._rates: list[list[float]] = []  # of stochastic depth, in each stage
        for i, width in enumerate(widths):
            first = sum(depths[:i])
            stage_rates = rates[first : first + depths[i]]
            blocks = nn.ModuleList()
            for path_rate in stage_rates:
                block = ManhattanBlock(
                    width,
                    settings["num_heads"][i],
                    settings["ffn_ratios"][i],
                    drop_path=DropPath(path_rate),
                    layer_scale=settings["layer_scales"][i],
                    decay_start=_DECAY_START,
                    decay_range=settings["decay_ranges"][i],
                    decomposed=settings["decomposed"][i],
                    decay=decay,
                    lce=lce,
                    cpe=cpe,
                )
                blocks.append(block)
            self.stages.append(blocks)
            self._rates.append(stage_rates)
            self.register_buffer(f"keep_{i}", kept_branches(stage_rates), persistent=False)
        self.out_norms = nn.ModuleDict()
        self.classifier = None
        if num_classes is None:
            for i in self.out_indices:
                self.out_norms[str(i)] = nn.LayerNorm(widths[i])
        else:
            self.classifier = _Classifier(widths[-1], num_classes, norm_cfg)
        self.apply(init_linear)
        self._freeze_stages()

    @property
    def parts(self) -> list[list[str]]:
        later = [[f"downsamples.{i - 1}", f"stages.{i}"] for i in range(1, self.built)]
        return [["stem"], ["stages.0"], *later]

    def _divisors(self, stage: int, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return divisors of both branches of each block, or [] if the blocks call `drop_path`."""
        # mmcv rounds the quotient to half precision. On a CPU, results stay the same.
        if compute_dtype(x) != torch.float32 and not x.is_cuda:
            return []
        blocks: Any = self.stages[stage]
        return draw_divisors(blocks, self._rates[stage], self.get_buffer(f"keep_{stage}"), x)

    def forward(self, images: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Map images (B, C, H, W) to logits (B, num_classes) or maps (B, C_i, h_i, w_i)."""
        self._check_images(images)
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        maps = []
        blocks: Any
        for i, blocks in enumerate(self.stages):
            if i > 0:
                x = self.downsamples[i - 1](x)
            x = channels_last(x)  # (B, h_i, w_i, C_i)
            terms = blocks[0].attn.position_terms(x)  # its blocks have equal settings
            divisors = self._divisors(i, x) or [None] * len(blocks)
            for block, of_branches in zip(blocks, divisors, strict=True):
                if takes_terms(block):
                    x = self._run(block, x, terms, of_branches)
                else:  # an adapter's
                    x = self._run(block, x)
            if str(i) in self.out_norms:
                maps.append(channels_first(self.out_norms[str(i)](x)))
            x = channels_first(x)  # (B, C_i, h_i, w_i)
        return tuple(maps) if self.classifier is None else self.classifier(x)
