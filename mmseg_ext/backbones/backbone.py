"""The base class of the backbones: variants, outputs, freezing, recomputation, weights.

Arguments have the meaning of mmsegmentation's ResNet; `feature_info` follows timm.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from typing import Any, ClassVar

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, normal_init
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmseg_ext.layers.programs import is_recorded
from mmseg_ext.layers.stochastic_depth import branch_divisors
from mmseg_ext.layers.submodules import does_more_than_forward

Settings = Mapping[str, Any]
OutIndices = int | Sequence[int]

# timm's `default_cfg` of published weights; mean and std are for R, G, B from 0 to 255.
IMAGENET: dict[str, Any] = {
    "mean": (123.675, 116.28, 103.53),
    "std": (58.395, 57.12, 57.375),
    "input_size": (3, 224, 224),
    "source": None,  # not published
    "license": None,  # none stated
}


def settings_of(arch: str | Settings, table: Mapping[str, Settings], base: Settings) -> dict:
    """Return the settings of a variant, by name or as a dict, completed from `base`.

    Raises:
        ValueError: for a name that is not in `table`, or a key that is not in `base`.
    """
    if not isinstance(arch, Mapping):
        if arch not in tuple(table):
            raise ValueError(f"arch={arch!r}: unknown; use {', '.join(table)} or a dict")
        arch = table[arch]
    unknown = [str(key) for key in arch if key not in base]
    if unknown:
        raise ValueError(f"arch: unknown keys {', '.join(unknown)}; use {', '.join(base)}")
    return {**base, **arch}


def init_linear(module: nn.Module) -> None:
    """Initialize a linear layer from N(0, 0.02), its bias with zero; leave other layers."""
    if isinstance(module, nn.Linear):
        # The published code truncates at 100 standard deviations, which has no effect.
        normal_init(module, std=0.02)  # type: ignore  # its annotation is int


def drop_rate(path: nn.Module) -> float | None:
    """Return the rate of a `DropPath`; None if it is frozen or replaced, or in evaluation."""
    if type(path) is not DropPath or not path.training or does_more_than_forward(path):
        return None
    return path.drop_prob


def planned_drop_rates(last: float, depth: int) -> list[float]:
    """Return the rate of stochastic depth of each block, from 0 to `last` in equal steps."""
    return [last * i / max(depth - 1, 1) for i in range(depth)]


def kept_branches(rates: Sequence[float]) -> Tensor:
    """Return the probability to keep each of the two branches of each block (2 n,), in float32."""
    return torch.tensor([1 - rate for rate in rates]).repeat_interleave(2)


def draw_divisors(
    blocks: Sequence[Any],
    rates: Sequence[float],
    keep: Tensor,
    x: Tensor,
    scale: float = 1.0,
) -> list[tuple[Tensor, Tensor]]:
    """Return divisors of both branches of each block of a stage, all drawn together.

    The list is empty if the blocks have to call their `drop_path`: in recorded programs, in
    evaluation, if all rates are zero, if a path is frozen or replaced, or if a rate was changed.

    Args:
        blocks: their `drop_path` is for both branches.
        rates: the rates that the blocks were built with.
        keep: `kept_branches(rates)`, on the device of the blocks.
        x: the input of the first block, images first.
        scale: divides all branches.
    """
    if is_recorded() or keep.dtype != torch.float32:  # after `half()` or `double()`
        return []
    now = [drop_rate(block.drop_path) for block in blocks]
    if now != rates or not any(rates):
        return []
    divisors = branch_divisors(keep, 2 * now.count(0.0), len(x), x.ndim, scale)
    return list(zip(divisors[::2], divisors[1::2], strict=True))


class FeatureInfo(list):
    """One dict for each feature map: `num_chs`, `reduction` (stride) and `module`."""

    def channels(self) -> list[int]:
        return [entry["num_chs"] for entry in self]

    def reduction(self) -> list[int]:
        return [entry["reduction"] for entry in self]


class Backbone(BaseModule):
    """A stem and stages; in plain transformers every block is a stage.

    A subclass defines `parts`, calls `_set_options` before it builds its modules, builds the first
    `self.built` stages, and then calls `_freeze_stages`.

    Args of every subclass:
        out_indices: index or indices of the stages whose maps are returned, always in increasing
            order. Negative indices count from the end. Later stages are not built.
        frozen_stages: -1 freezes nothing, 0 the stem, n the stem and the first n stages. Frozen
            parts have no gradients and stay in eval mode.
        with_cp: recompute activations in the backward pass to save memory.
        num_classes: classes of the published classifier. `forward` then returns logits
            (B, num_classes); with None it returns feature maps.
        norm_cfg, init_cfg: norm layer of mmcv, and initialization of mmengine.

    Raises:
        ValueError: for an unknown arch or key, for `out_indices` or `frozen_stages` out of range,
            for images that are not (B, C, H, W), and for a state dict of another arch.
    """

    arch_settings: ClassVar[Mapping[str, Settings]]
    default_cfgs: ClassVar[Mapping[str, dict[str, Any]]]  # by arch; "" for all others
    # Pattern of keys that only published files have: the family to convert them with.
    published_names: ClassVar[Mapping[str, str]] = {}
    norm_eval = False  # an argument of the convolutional networks

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The `mean`, `std`, `input_size`, `source`, `license`, ... of the published weights."""
        return dict(self.default_cfgs.get(self.arch, self.default_cfgs[""]))

    @property
    def parts(self) -> list[list[str]]:
        """Names of the modules and parameters of the stem, then of each stage that is built.

        A stage may own modules outside itself, such as the downsampling before it, which are frozen
        with it. The stage itself is the last name; `feature_info` refers to it.
        """
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
        """Check and store the options; `channels` and `strides` have an entry for every stage."""
        count = len(channels)
        indices = [out_indices] if isinstance(out_indices, int) else list(out_indices)
        in_range = all(isinstance(i, int) and -count <= i < count for i in indices)
        if not indices or not in_range:
            raise ValueError(f"out_indices={out_indices}: not in [-{count}, {count - 1}]")
        if not -1 <= frozen_stages <= count:
            raise ValueError(f"frozen_stages={frozen_stages}: not in [-1, {count}]")
        self.arch = arch if isinstance(arch, str) else "custom"
        self.out_indices = tuple(sorted({i % count for i in indices}))
        self.built = count
        if num_classes is None:
            # A stage that does not run gets no gradient, and DDP would wait for it.
            self.built = self.out_indices[-1] + 1
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp
        self.in_channels = in_channels
        self.stage_channels = tuple(channels)
        self.stage_strides = tuple(strides)

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and module of each returned map, as in timm."""
        info = FeatureInfo()
        for i in self.out_indices:
            entry = {
                "num_chs": self.stage_channels[i],
                "reduction": self.stage_strides[i],
                "module": self.parts[i + 1][-1],
            }
            info.append(entry)
        return info

    def _freeze_stages(self) -> None:
        """Turn off gradients of the frozen parts, and set them to eval mode."""
        for names in self.parts[: self.frozen_stages + 1]:
            for name in names:
                part = attrgetter(name)(self)
                part.requires_grad_(False)
                if isinstance(part, nn.Module):
                    part.eval()

    def train(self, mode: bool = True) -> "Backbone":
        """Set the mode; frozen parts and, with `norm_eval`, batch norms stay in eval mode."""
        super().train(mode)
        self._freeze_stages()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _check_images(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            shape = tuple(images.shape)
            raise ValueError(f"images: shape {shape} is not (B, {self.in_channels}, H, W)")

    def _run(self, block: nn.Module, x: Tensor, *arguments: Any) -> Tensor:
        """Return `block(x, *arguments)`; with `with_cp` compute it again in the backward pass."""
        if not (self.with_cp and x.requires_grad):
            return block(x, *arguments)
        contexts = lambda: (nullcontext(), _frozen_statistics(block))  # noqa: E731
        return checkpoint(block, x, *arguments, use_reentrant=False, context_fn=contexts)

    @classmethod
    def named_arch(cls, state_dict: Mapping[str, Tensor]) -> str | None:
        """Return the variant with the depths and widths of a state dict, or None."""
        theirs = _depths_and_widths(state_dict)
        for name in cls.arch_settings:
            with torch.device("meta"):
                variant = cls(arch=name)  # pyright: ignore[reportCallIssue] (of the subclasses)
                if theirs == _depths_and_widths(variant.state_dict()):
                    return name
        return None

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args) -> None:
        """Check that the entries of `state_dict` below `prefix` belong to this architecture.

        torch and mmengine call this in every load, and mmengine only logs what does not fit.

        Raises:
            ValueError: if the keys belong to published code, or if a shape or the number of
                blocks in a stage differs; the message names the variant of the checkpoint.
        """
        theirs = {}
        for key, value in state_dict.items():
            if key.startswith(prefix):
                theirs[key.removeprefix(prefix)] = value
        for key in theirs:
            for pattern, family in self.published_names.items():
                if re.match(pattern, key):
                    raise ValueError(
                        f"{prefix}{key}: the checkpoint has the names of published code; convert "
                        f"it with mmseg-ext convert {family} SRC DST"
                    )
        problem = self._other_shape(theirs) or self._other_depth(theirs)
        if problem is not None:
            name = self.named_arch(theirs)
            if name is not None and name != self.arch:
                problem += f"; the checkpoint is arch {name!r}, the backbone {self.arch!r}"
            raise ValueError(f"{prefix}{problem}")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _other_shape(self, theirs: Mapping[str, Tensor]) -> str | None:
        """Return the first key of the checkpoint with another shape, and both shapes."""
        for key, value in self.state_dict().items():
            if key in theirs and theirs[key].shape != value.shape:
                their_shape, own_shape = tuple(theirs[key].shape), tuple(value.shape)
                return f"{key}: {their_shape} in the checkpoint, {own_shape} in the backbone"
        return None

    def _other_depth(self, theirs: Mapping[str, Tensor]) -> str | None:
        """Return the first stage of the checkpoint with another number of blocks, and both."""
        ours = _block_counts(self.state_dict())
        for stage, count in _block_counts(theirs).items():
            # Stages that `out_indices` leaves out may be in the checkpoint.
            most = ours.get(stage, count)
            if stage == "blocks":
                # In a plain transformer, `out_indices` leaves out blocks instead of stages.
                most = len(self.stage_channels)
            if not ours.get(stage, 0) <= count <= most:
                return f"{stage}: {count} blocks in the checkpoint, {most} in the backbone"
        return None


@contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch norms, which the first pass has already updated."""
    kept = []  # norms and their buffers
    # Copies instead of a momentum of zero: SyncBatchNorm needs `num_batches_tracked`.
    for norm in block.modules():
        if not isinstance(norm, _BatchNorm):
            continue
        kept.append((norm, dict(norm._buffers)))
        for name, buffer in norm._buffers.items():
            if buffer is not None:
                norm._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for norm, buffers in kept:
            norm._buffers.update(buffers)


_NORMS = ("norm1", "bn1", "expand.bn")
# The stage and the number of a block: blocks.11.norm1.weight, stages.2.0.norm1.bias, layer3.22.bn1.
_BLOCK = re.compile(r"(blocks|stages\.\d+|layer\d+)\.(\d+)\.")


def _block_counts(state_dict: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of blocks of each stage in a state dict."""
    counts: dict[str, int] = {}
    for key in state_dict:
        match = _BLOCK.match(key)
        if match:
            stage, number = match[1], int(match[2])
            counts[stage] = max(counts.get(stage, 0), number + 1)
    return counts


def _depths_and_widths(state_dict: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return the blocks of each stage, and the width of its first norm (0 if it is missing)."""
    found = {}
    for stage, count in _block_counts(state_dict).items():
        width = 0
        for norm in _NORMS:
            weight = state_dict.get(f"{stage}.0.{norm}.weight")
            if weight is not None:
                width = max(width, len(weight))
        found[stage] = count, width
    return found
