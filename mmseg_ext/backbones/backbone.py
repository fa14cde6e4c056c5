"""What every backbone does alike: variants, outputs, freezing, recomputing, foreign weights.

The arguments mean what they mean in mmsegmentation's ResNet; `feature_info` follows timm.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from typing import Any, ClassVar

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

Settings = Mapping[str, Any]
OutIndices = int | Sequence[int]


def settings_of(arch: str | Settings, table: Mapping[str, Settings], base: Settings) -> dict:
    """The settings of a named variant, or of a dict; either may hold a part of those of `base`.

    Raises:
        ValueError: for a name that is not in `table`, or a key that `base` does not have.
    """
    if not isinstance(arch, Mapping):
        if arch not in tuple(table):
            raise ValueError(f"arch must be one of {', '.join(table)} or a dict, not {arch!r}")
        arch = table[arch]
    unknown = [str(key) for key in arch if key not in base]
    if unknown:
        raise ValueError(
            f"arch has the unknown keys {', '.join(unknown)}; known: {', '.join(base)}"
        )
    return {**base, **arch}


class FeatureInfo(list):
    """One dict for each map that a backbone gives: `num_chs`, `reduction` (stride) and `module`."""

    def channels(self) -> list[int]:
        return [entry["num_chs"] for entry in self]

    def reduction(self) -> list[int]:
        return [entry["reduction"] for entry in self]


class Backbone(BaseModule):
    """A stem and stages, the maps of some of which are given; for a plain transformer, blocks.

    A subclass has `parts`, calls `_set_options` before it builds its modules, of whose stages it
    builds the first `self.built`, and `_freeze_stages` when they are there.

    Args that every subclass has:
        out_indices: index or indices of the stages whose maps forward returns, in increasing order;
            negative ones count from the end. Stages after the last of them are not built.
        frozen_stages: 0 freezes the stem, n also the first n stages; -1 nothing. Frozen parts have
            no gradient and stay in eval mode.
        with_cp: recompute the blocks' activations in the backward to save memory.
        num_classes: classes of the published classifier, whose logits (B, num_classes) forward then
            returns; None for feature maps.
        norm_cfg, init_cfg: mmcv's norm and mmengine's initialisation.

    Raises:
        ValueError: for an unknown arch or key of one, `out_indices` or `frozen_stages` that do not
            exist, images that are not (B, C, H, W), and a state dict of another arch.
    """

    arch_settings: ClassVar[Mapping[str, Settings]]
    # Patterns of names that only published code has, and the family of `convert` for its files.
    published_names: ClassVar[Mapping[str, str]] = {}

    @property
    def parts(self) -> list[list[str]]:
        """Names of what the stem consists of, then of each built stage; the stage itself last."""
        raise NotImplementedError

    def _set_options(
        self,
        arch: object,
        channels: Sequence[int],
        strides: Sequence[int],
        out_indices: OutIndices,
        frozen_stages: int,
        with_cp: bool,
        num_classes: int | None,
        in_channels: int = 3,
    ) -> None:
        """`channels` and `strides` are those of all stages that the variant has."""
        count = len(channels)
        given = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
        if not given or any(not isinstance(i, int) or not -count <= i < count for i in given):
            raise ValueError(f"out_indices must lie in [-{count}, {count - 1}], not {out_indices}")
        if not -1 <= frozen_stages <= count:
            raise ValueError(f"frozen_stages must lie in [-1, {count}], not {frozen_stages}")
        self.arch = arch if isinstance(arch, str) else "custom"
        self.out_indices = tuple(sorted({i % count for i in given}))
        # A stage that does not run gets no gradient, for which distributed training would wait.
        self.built = count if num_classes is not None else self.out_indices[-1] + 1
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp
        self.in_channels = in_channels
        self.stage_channels = tuple(channels)
        self.stage_strides = tuple(strides)
        self.register_load_state_dict_pre_hook(_refuse_foreign)

    @property
    def feature_info(self) -> FeatureInfo:
        """Width and stride of each map of `out_indices`, in the form of timm's `feature_info`."""
        return FeatureInfo(
            {
                "num_chs": self.stage_channels[i],
                "reduction": self.stage_strides[i],
                "module": self.parts[i + 1][-1],
            }
            for i in self.out_indices
        )

    def _freeze_stages(self) -> None:
        """Frozen parts take no gradient and stay in eval mode."""
        for names in self.parts[: self.frozen_stages + 1]:
            for name in names:
                part = attrgetter(name)(self)
                part.requires_grad_(False)
                if isinstance(part, nn.Module):
                    part.eval()

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        self._freeze_stages()
        return self

    def _check_images(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ValueError(
                f"images must be (B, {self.in_channels}, H, W), not {tuple(images.shape)}"
            )

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        if not (self.with_cp and x.requires_grad):
            return block(x)
        return checkpoint(
            block,
            x,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _statistics_kept(block)),
        )

    # ------------------------------------------------------------------ foreign weights

    @classmethod
    def named_arch(cls, state_dict: Mapping[str, Tensor]) -> str | None:
        """The named variant whose depths and widths a state dict has, None if no one's."""
        theirs = _depths_and_widths(state_dict)
        for name in cls.arch_settings:
            with torch.device("meta"):
                variant = cls(arch=name)  # pyright: ignore[reportCallIssue] (of the subclasses)
                if theirs == _depths_and_widths(variant.state_dict()):
                    return name
        return None

    def refuse_foreign(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> None:
        """Every load calls it: mmengine would load what fits and only log the rest.

        Raises:
            ValueError: where the entries of `state_dict` that start with `prefix` have published
                names, or where one has another shape than the backbone's or a stage another
                number of blocks: which, and the variant that the checkpoint looks like.
        """
        theirs = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        for pattern, family in self.published_names.items():
            if (key := next((k for k in theirs if re.match(pattern, k)), None)) is not None:
                raise ValueError(
                    f"{prefix}{key} is a name of published code: convert the checkpoint with "
                    f"mmseg-ext convert {family} SRC DST"
                )
        problem = self._other_shape(theirs) or self._other_depth(theirs)
        if problem is None:
            return
        name = self.named_arch(theirs)
        if name is not None and name != self.arch:
            problem += f"; it looks like arch {name!r}, the backbone is {self.arch!r}"
        raise ValueError(f"{prefix}{problem}")

    def _other_shape(self, theirs: Mapping[str, Tensor]) -> str | None:
        for key, value in self.state_dict().items():
            if key in theirs and theirs[key].shape != value.shape:
                shapes = tuple(theirs[key].shape), tuple(value.shape)
                return f"{key} is {shapes[0]} in the checkpoint and {shapes[1]} in the backbone"
        return None

    def _other_depth(self, theirs: Mapping[str, Tensor]) -> str | None:
        """A stage of another number of blocks. Whole stages may be left out by `out_indices`."""
        ours = _block_counts(self.state_dict())
        for stage, count in _block_counts(theirs).items():
            # Of a transformer's one row of blocks, those after the last output are left out.
            most = len(self.stage_channels) if stage == "blocks" else ours.get(stage, count)
            if not ours.get(stage, 0) <= count <= most:
                return f"{stage} has {count} blocks in the checkpoint and {most} in the backbone"
        return None


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """The batch norms of `block` normalise as they do, but leave their running statistics alone."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm)]
    kept = [dict(norm._buffers) for norm in norms]
    # Copies, not a momentum of zero: synchronised norms stop where the count of batches is None.
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({k: v.clone() for k, v in buffers.items() if v is not None})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


_NORMS = ("norm1", "bn1")
_BLOCK = re.compile(r"(blocks|stages\.\d+|layer\d+)\.(\d+)\.")


def _block_counts(state_dict: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of blocks of each stage that a state dict has any of."""
    counts: dict[str, int] = {}
    for key in state_dict:
        if match := _BLOCK.match(key):
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def _depths_and_widths(state_dict: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Blocks of each stage, and the width of the first one's first norm (0 where it is missing)."""
    none = torch.empty(0)
    return {
        stage: (count, max(len(state_dict.get(f"{stage}.0.{n}.weight", none)) for n in _NORMS))
        for stage, count in _block_counts(state_dict).items()
    }


def _refuse_foreign(module: Backbone, state_dict: Mapping[str, Tensor], prefix: str, *_) -> None:
    module.refuse_foreign(state_dict, prefix)
