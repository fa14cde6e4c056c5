"""RMT: four stages of Manhattan attention at strides 4, 8, 16 and 32.

Paper: RMT: Retentive Networks Meet Vision Transformers, arXiv:2309.11523.
Follows: qhfan/RMT (32ea214), `segmentation/mmseg/models/backbones/RMT.py` (features) and
`classfication_release/RMT.py` (classifier). Where paper and code differ, the code that made the
published weights is followed: four convolutions in the stem instead of five, a depthwise
convolution in the feed-forward network, and whole-map attention in stage 3 of `tiny`.

Deviations, none of which changes the published result: the attention layer's (see there), maps stay
channels-last throughout, and the kind of batch norm is an argument.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmseg_ext.backbones.layer_depth import in_stages
from mmseg_ext.backbones.recompute import run_recomputed
from mmseg_ext.layers.manhattan_block import ManhattanBlock, channels_first, channels_last

# Depths, widths, heads, feed-forward ratios, decay ranges (the decays start at 2), which stages
# attend along W and H in turn, initial layer scale (None: no layer scale) and stochastic depth.
ARCHS: dict[str, dict[str, Any]] = {
    "tiny": {
        "depths": (2, 2, 8, 2),
        "embed_dims": (64, 128, 256, 512),
        "num_heads": (4, 4, 8, 16),
        "ffn_ratios": (3, 3, 3, 3),
        "decay_ranges": (4, 4, 6, 6),
        "decomposed": (True, True, False, False),
        "layer_scales": (None, None, None, None),
        "drop_path_rate": 0.1,
    },
    "small": {
        "depths": (3, 4, 18, 4),
        "embed_dims": (64, 128, 256, 512),
        "num_heads": (4, 4, 8, 16),
        "ffn_ratios": (4, 4, 3, 3),
        "decay_ranges": (4, 4, 6, 6),
        "decomposed": (True, True, True, False),
        "layer_scales": (None, None, None, None),
        "drop_path_rate": 0.15,
    },
    "base": {
        "depths": (4, 8, 25, 8),
        "embed_dims": (80, 160, 320, 512),
        "num_heads": (5, 5, 10, 16),
        "ffn_ratios": (4, 4, 3, 3),
        "decay_ranges": (5, 5, 6, 6),
        "decomposed": (True, True, True, False),
        "layer_scales": (None, None, 1e-6, 1e-6),
        "drop_path_rate": 0.4,
    },
    "large": {
        "depths": (4, 8, 25, 8),
        "embed_dims": (112, 224, 448, 640),
        "num_heads": (7, 7, 14, 20),
        "ffn_ratios": (4, 4, 3, 3),
        "decay_ranges": (6, 6, 6, 6),
        "decomposed": (True, True, True, False),
        "layer_scales": (None, None, 1e-6, 1e-6),
        "drop_path_rate": 0.5,
    },
}

_DECAY_START = 2.0
_CLASSIFIER_WIDTH = 1024


def _stem(in_channels: int, width: int, norm_cfg: dict) -> nn.Sequential:
    """Two strided and two plain 3x3 convolutions, (B, C, H, W) to (B, width, H / 4, W / 4)."""
    channels = (in_channels, width // 2, width // 2, width, width)
    layers: list[nn.Module] = []
    for i in range(4):
        stride = 2 if i % 2 == 0 else 1
        layers.append(nn.Conv2d(channels[i], channels[i + 1], 3, stride, 1))
        layers.append(build_norm_layer(norm_cfg, channels[i + 1])[1])
        layers.append(nn.GELU())
    return nn.Sequential(*layers[:-1])  # no activation after the last norm


def _downsample(before: int, after: int, norm_cfg: dict) -> nn.Sequential:
    """(B, before, H, W) to (B, after, H / 2, W / 2)."""
    layers = nn.Sequential()
    layers.add_module("conv", nn.Conv2d(before, after, 3, 2, 1))
    # By this name the published recipe finds the norms that get no weight decay.
    layers.add_module("norm", build_norm_layer(norm_cfg, after)[1])
    return layers


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


class RMT(BaseModule):
    """RMT on images (B, 3, H, W) of any size.

    Gives a tuple of maps (B, C_i, ceil(H / s), ceil(W / s)), s = 4, 8, 16, 32, one per stage in
    `out_indices`, each after a layer norm of its own (eps 1e-5), which the published segmentation
    code adds. Stages after the last of `out_indices` are not built. With `num_classes` it is the
    published classifier and gives logits (B, num_classes); `out_indices` then has no meaning.

    Args:
        arch: a name of `ARCHS` or a dict with its keys.
        in_channels: channels of the image.
        out_indices: which stage's or stages' maps to give.
        frozen_stages: the stem (from 0 on) and this many stages, each with the downsampling before
            it, are kept in eval mode and get no gradient; -1 freezes nothing.
        with_cp: compute the blocks again in the backward instead of keeping their activations.
        norm_cfg: the batch norm of stem, downsamplings and classifier.
        drop_path_rate: stochastic depth of the last block, from 0 at the first; None is the arch's.
        decay: the attention's decay, see `ManhattanAttention`; None is the paper's ablation.
        lce: local context enhancement in the attention; False is the paper's ablation.
        cpe: conditional position encoding; False is the paper's ablation.
        num_classes: classes of the classifier, None for a backbone.
        init_cfg: mmengine's initialisation, as a rule `dict(type='Pretrained', checkpoint=...)`
            with a file that `tools/model_converters/rmt2mmseg.py` has written.

    Raises:
        ValueError: for an unknown arch, listing the known, for stages that do not exist, and on
            loading a state dict of another arch.
    """

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "tiny",
        in_channels: int = 3,
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        norm_cfg: dict | None = None,
        drop_path_rate: float | None = None,
        decay: str | None = "logit",
        lce: bool = True,
        cpe: bool = True,
        num_classes: int | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        self.arch = arch if isinstance(arch, str) else "custom"
        arch = _settings(arch)
        total = len(arch["depths"])
        out_indices = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
        if not out_indices or any(i not in range(total) for i in out_indices):
            raise ValueError(f"out_indices={out_indices} must name stages 0 to {total - 1}")
        if not -1 <= frozen_stages <= total:
            raise ValueError(f"frozen_stages={frozen_stages} must lie between -1 and {total}")
        norm_cfg = norm_cfg or {"type": "BN"}
        used = total if num_classes is not None else max(out_indices) + 1
        widths = arch["embed_dims"][:used]

        self.out_indices = out_indices
        self.frozen_stages = min(frozen_stages, used)
        self.with_cp = with_cp
        self.stem = _stem(in_channels, widths[0], norm_cfg)
        self.downsamples = nn.ModuleList(
            _downsample(before, after, norm_cfg) for before, after in pairwise(widths)
        )
        rate = arch["drop_path_rate"] if drop_path_rate is None else drop_path_rate
        drop_paths = iter(torch.linspace(0, rate, sum(arch["depths"]), device="cpu").tolist())
        self.stages = nn.ModuleList()
        for i, width in enumerate(widths):
            self.stages.append(
                nn.ModuleList(
                    ManhattanBlock(
                        width,
                        arch["num_heads"][i],
                        arch["ffn_ratios"][i],
                        drop_path=DropPath(next(drop_paths)),
                        layer_scale=arch["layer_scales"][i],
                        cpe=cpe,
                        decay_start=_DECAY_START,
                        decay_range=arch["decay_ranges"][i],
                        decomposed=arch["decomposed"][i],
                        decay=decay,
                        lce=lce,
                    )
                    for _ in range(arch["depths"][i])
                )
            )
        self.out_norms = nn.ModuleDict()
        self.classifier = None
        if num_classes is None:
            for i in sorted(set(self.out_indices)):
                self.out_norms[str(i)] = nn.LayerNorm(widths[i])
        else:
            self.classifier = _Classifier(widths[-1], num_classes, norm_cfg)
        self.apply(_init_linear)
        self._freeze()
        self.register_load_state_dict_pre_hook(_refuse_foreign)

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        outputs = {}
        for i, blocks in enumerate(self.stages):
            if i > 0:
                x = self.downsamples[i - 1](x)
            x = channels_last(x)
            for block in blocks:
                x = self._run(block, x)
            if str(i) in self.out_norms:
                outputs[i] = channels_first(self.out_norms[str(i)](x))
            x = channels_first(x)
        if self.classifier is not None:
            return self.classifier(x)
        return tuple(outputs[i] for i in self.out_indices)

    def _run(self, block: ManhattanBlock, x: Tensor) -> Tensor:
        if self.with_cp and self.training and torch.is_grad_enabled():
            return run_recomputed(block, x)
        return block(x)

    def get_layer_depth(self, param_name: str, prefix: str = "") -> tuple[int, int]:
        """The depth of a parameter, from 0 at the input, and the number of depths."""
        return in_stages(param_name, prefix, [len(blocks) for blocks in self.stages])

    def refuse_foreign(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> None:
        """Every load calls it: mmengine would load what fits and only log the rest.

        Raises:
            ValueError: where the entries of `state_dict` that start with `prefix` have published
                names, or where one differs from the backbone's: the entry and the reason.
        """
        theirs = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        if any(key.startswith("patch_embed.") for key in theirs):
            raise ValueError(
                f"{prefix}patch_embed.* are names of the published code: convert the checkpoint "
                "with tools/model_converters/rmt2mmseg.py"
            )
        if (problem := _mismatch(theirs, self)) is not None:
            raise ValueError(f"{prefix}{problem}")

    def train(self, mode: bool = True):
        super().train(mode)
        self._freeze()
        return self

    def _freeze(self) -> None:
        """Frozen parts take no gradient, and their batch norms keep their statistics."""
        if self.frozen_stages < 0:
            return
        frozen = [
            self.stem,
            *self.stages[: self.frozen_stages],
            *self.downsamples[: max(0, self.frozen_stages - 1)],
        ]
        for part in frozen:
            part.eval()
            part.requires_grad_(False)


def _settings(arch: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(arch, Mapping):
        if arch not in tuple(ARCHS):
            raise ValueError(f"arch must be one of {', '.join(ARCHS)} or a dict, not {arch!r}")
        return ARCHS[arch]
    expected = set(ARCHS["tiny"])
    if set(arch) != expected:
        raise ValueError(f"arch={dict(arch)!r} must have the keys {', '.join(sorted(expected))}")
    lists = {key: len(arch[key]) for key in expected - {"drop_path_rate"}}
    if len(set(lists.values())) != 1:
        raise ValueError(f"arch has lists of different lengths: {lists}")
    return arch


def _init_linear(module: nn.Module) -> None:
    """The published init: linear layers N(0, 0.02) truncated, the rest PyTorch's own."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def _stages(state_dict: Mapping[str, Tensor]) -> dict[int, tuple[int, int | None]]:
    """Depth and width of each stage that a state dict of `RMT` has blocks of."""
    depths: dict[int, int] = {}
    for key in state_dict:
        if match := re.match(r"stages\.(\d+)\.(\d+)\.", key):
            stage, block = int(match[1]), int(match[2])
            depths[stage] = max(depths.get(stage, 0), block + 1)
    norms = {i: state_dict.get(f"stages.{i}.0.norm1.weight") for i in depths}
    return {i: (depths[i], None if norm is None else len(norm)) for i, norm in norms.items()}


def arch_of(state_dict: Mapping[str, Tensor]) -> str | None:
    """The name of the arch whose depths and widths a state dict of `RMT` has, None if no one's."""
    stages = _stages(state_dict)
    for name, settings in ARCHS.items():
        if stages == dict(enumerate(zip(settings["depths"], settings["embed_dims"], strict=True))):
            return name
    return None


def _refuse_foreign(module: RMT, state_dict: Mapping[str, Tensor], prefix: str, *_) -> None:
    module.refuse_foreign(state_dict, prefix)


# Entries, and their axis, whose length is an argument of the same name in any arch.
_ARGUMENTS = {"classifier.head.weight": ("num_classes", 0), "stem.0.weight": ("in_channels", 1)}


def _mismatch(theirs: Mapping[str, Tensor], module: RMT) -> str | None:
    """What differs first, and why: another arch, or another shape in the same one."""
    ours = module.state_dict()
    key = _first_mismatch(theirs, ours)
    if key is None:
        return None
    their_stages, our_stages = _stages(theirs), _stages(ours)
    same_arch = all(their_stages.get(i, stage) == stage for i, stage in our_stages.items())
    if same_arch and key in theirs and key in ours:
        shapes = tuple(theirs[key].shape), tuple(ours[key].shape)
        text = f"{key} does not match: {shapes[0]} in the checkpoint, {shapes[1]} in the backbone"
        if key in _ARGUMENTS:
            argument, axis = _ARGUMENTS[key]
            text += f"; {argument} is {shapes[0][axis]} there, {shapes[1][axis]} here"
        return text
    name = arch_of(theirs)
    looks = f"looks like arch {name!r}" if name else f"is none of {', '.join(ARCHS)}"
    return f"{key} does not match: the checkpoint {looks}, the backbone is {module.arch!r}"


def _first_mismatch(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> str | None:
    """The first entry of another shape, or of a block that only one of the two has.

    Stages that only the checkpoint has are no mismatch: `out_indices` may leave them out.
    """
    for key, value in ours.items():
        if key in theirs and theirs[key].shape != value.shape:
            return key
    blocks = [
        {m[0]: k for k in d if (m := re.match(r"stages\.\d+\.\d+\.", k))} for d in (theirs, ours)
    ]
    stages = {block.rsplit(".", 2)[0] for block in blocks[1]}
    for block in sorted(blocks[0].keys() ^ blocks[1].keys()):
        if blocks[0] and block.rsplit(".", 2)[0] in stages:
            return blocks[0].get(block) or blocks[1][block]
    return None
