"""Private names of mmengine, mmcv and mmsegmentation that this package uses, each with its reason.

Each is here under a public name, so that a release that renames one of them changes this file
alone. All exist in mmengine 0.10.7 to 0.10.12, mmcv 2.1 to 2.3 and mmsegmentation 1.2.2 to 1.4.2.

Subclasses call or write these where they are: `_transform_inputs` of a decode head,
`_decode_head_forward_train` and `_auxiliary_head_forward_train` of a segmentor, `_load_seg_map` of
a label transform, `_metainfo` of a dataset, `_get_value` of a scheduler, and `_scale_update_param`
of `AmpOptimWrapper`, whose constructor asserts a GPU.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.hooks import CheckpointHook
    from mmengine.model import ImgDataPreprocessor
    from mmengine.runner import IterBasedTrainLoop, Runner
    from mmseg.datasets import BaseSegDataset
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead
    from torch import Tensor
    from torch.utils.data import DataLoader

COMPILED_OPERATORS = "mmcv._ext"  # the module; importing `mmcv.ops` without it fails


def resume_from(runner: "Runner", path: str | None) -> None:
    """Resume from this checkpoint, or start anew with None; mmengine takes it at construction."""
    runner._load_from = path
    runner._resume = path is not None


def searches_checkpoint(runner: "Runner") -> bool:
    """Whether the Runner is to resume, from a checkpoint that nobody has named."""
    return runner._resume and runner._load_from is None and not runner._has_loaded


def built_dataloaders(runner: "Runner") -> Iterator["DataLoader"]:
    """The data loaders of the loops that are built; the public properties would build the rest."""
    for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
        if hasattr(loop, "dataloader"):
            yield loop.dataloader


def validates_at(loop: "IterBasedTrainLoop", iteration: int) -> bool:
    """Whether the loop validates after this iteration; its `run` decides and does not tell."""
    if iteration < loop.val_begin:
        return False
    loop._decide_current_val_interval()  # of `dynamic_intervals`
    return iteration % loop.val_interval == 0 or iteration == loop.max_iters


def save_checkpoint(hook: "CheckpointHook", runner: "Runner") -> None:
    """Save the state after this iteration, out of turn; the hook's public methods ask the interval.

    Unlike `_save_checkpoint`, it does not count an unfinished epoch as done.
    """
    step = runner.iter + 1
    hook._save_checkpoint_with_step(runner, step, {"epoch": runner.epoch, "iter": step})


def classes_and_palette(kind: type["BaseSegDataset"], changes: dict | None) -> tuple:
    """The classes and the palette of datasets of a class, with `metainfo=changes`, none built.

    Datasets have both as properties alone. mmsegmentation's rule completes a palette that is left
    out or has more colours than there are classes.
    """
    meta = kind._load_metainfo(changes)
    classes = tuple(meta.get("classes") or ())
    partial = SimpleNamespace(_metainfo=meta, label_map=kind.get_label_map(classes or None))
    return classes, kind._update_palette(partial) if classes else None


def label_maps(head: "BaseDecodeHead", data_samples: list) -> "Tensor":
    """The label maps of a batch, (B, 1, H, W), as the head's own loss stacks them."""
    return head._stack_batch_gt(data_samples)


def converts_channels(preprocessor: "ImgDataPreprocessor") -> bool:
    """Whether it turns BGR into RGB, or the other way; it keeps no public copy of the argument."""
    if hasattr(preprocessor, "channel_conversion"):  # mmseg's own, before 1.4
        return preprocessor.channel_conversion
    return preprocessor._channel_conversion
