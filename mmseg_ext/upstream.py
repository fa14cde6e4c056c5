"""Private names of mmengine, mmcv and mmsegmentation that this package uses, with the reasons.

Each has a public name here, so a release that renames one changes only this file. All exist in
mmengine 0.10.7 to 0.10.12, mmcv 2.1 to 2.3 and mmsegmentation 1.2.2 to 1.4.2.
Branches for versions of torch are in `torch_versions`.

Subclasses use these private names directly: `_transform_inputs` of a decode head,
`_decode_head_forward_train` and `_auxiliary_head_forward_train` of a segmentor, `_load_seg_map` of
a label transform, `_metainfo` of a dataset, `_get_value` of a scheduler,
`_log_history` and `_count_history` of `HistoryBuffer`, `_save_checkpoint_with_step` and
`_default_greater_keys` of `CheckpointHook`, `_maybe_compile` of the Runner, and
`_scale_update_param` of `AmpOptimWrapper`, whose constructor asserts a GPU.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmengine.hooks import CheckpointHook
    from mmengine.optim import OptimWrapper
    from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
    from mmengine.structures import PixelData
    from mmengine.utils import ManagerMixin
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead
    from mmseg.structures import SegDataSample
    from torch import Tensor

COMPILED_OPERATORS = "mmcv._ext"  # the module; importing `mmcv.ops` without it fails


def resume_from(runner: "Runner", path: str | None) -> None:
    """Resume from this checkpoint, or start a new run with None.

    The Runner's public arguments are read only at construction.
    """
    runner._load_from = path
    runner._resume = path is not None


def resumes(runner: "Runner") -> bool:
    """Return whether the Runner resumes a run instead of loading weights only."""
    return runner._resume


def searches_checkpoint(runner: "Runner") -> bool:
    """Return whether the Runner has to resume and still needs to find the checkpoint."""
    return runner._resume and runner._load_from is None and not runner._has_loaded


def built_loops(runner: "Runner") -> dict[str, Any]:
    """Return the loops that are built by 'train', 'val' and 'test'; public names build the others.

    Settings of a loop, and None, have no `dataloader`.
    """
    loops = {"train": runner._train_loop, "val": runner._val_loop, "test": runner._test_loop}
    return {stage: loop for stage, loop in loops.items() if hasattr(loop, "dataloader")}


def shut_down_workers(runner: "Runner") -> None:
    """Stop the workers of the Runner's data loaders; persistent ones start again when needed.

    The garbage collector frees a run in any order, and torch then waits ten seconds for a worker.
    """
    endless: Any = getattr(runner._train_loop, "dataloader_iterator", None)  # by iterations
    for owner in (*(loop.dataloader for loop in built_loops(runner).values()), endless):
        iterator: Any = getattr(owner, "_iterator", None)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
            owner._iterator = None


def validates_at(loop: "IterBasedTrainLoop | EpochBasedTrainLoop", step: int, last: int) -> bool:
    """Return whether the loop validates after this step; only its `run` decides this.

    A step is an iteration or an epoch, as the loop counts, and the loop is at it.
    """
    if step < loop.val_begin:
        return False
    loop._decide_current_val_interval()  # of `dynamic_intervals`
    return step % loop.val_interval == 0 or step == last


def save_checkpoint(hook: "CheckpointHook", runner: "Runner") -> None:
    """Save after this iteration, whatever the interval; the hook's public methods check it.

    `_save_checkpoint` would count an unfinished epoch as finished. The file of such an epoch has
    the epoch's name, so the checkpoint of the complete epoch replaces it.
    """
    meta = {"epoch": runner.epoch, "iter": runner.iter + 1}
    finished = runner.epoch if hook.by_epoch else runner.iter
    hook._save_checkpoint_with_step(runner, finished + 1, meta)


def forget_instance(kind: "type[ManagerMixin]", name: str | None) -> None:
    """Let mmengine make a new instance of this name; it would return the existing one."""
    kind._instance_dict.pop(name, None)  # type: ignore  # of its metaclass
    for subclass in kind.__subclasses__():
        forget_instance(subclass, name)


def base_configs(path: str) -> list[str]:
    """Return the paths of a config's `_base_`, which are not in a loaded config."""
    from mmengine.config import Config

    return [Config._get_cfg_path(base, path)[0] for base in Config._get_base_files(path)]


def accumulates_gradients(wrapper: "OptimWrapper") -> bool:
    """Return whether a wrapper adds up the gradients of several batches for a step."""
    return wrapper._accumulative_counts > 1


def set_hidden_logits(sample: "SegDataSample", logits: "PixelData") -> None:
    """Set what `sample.seg_logits` returns, without a field that `in`, `cpu` and `to_dict` see."""
    vars(sample)["_seg_logits"] = logits


def label_maps(head: "BaseDecodeHead", data_samples: list) -> "Tensor":
    """Return the label maps of a batch `(B, 1, H, W)`, stacked by the head's own rule."""
    return head._stack_batch_gt(data_samples)


def converts_channels(preprocessor: Any) -> bool:
    """Return whether a preprocessor swaps BGR and RGB; it has no public attribute for this."""
    if hasattr(preprocessor, "channel_conversion"):  # mmseg's own, before 1.4
        return preprocessor.channel_conversion
    return preprocessor._channel_conversion


def set_channel_conversion(preprocessor: Any, converts: bool) -> None:
    """Let a preprocessor swap BGR and RGB, or not."""
    if hasattr(preprocessor, "channel_conversion"):  # mmseg's own, before 1.4
        preprocessor.channel_conversion = converts
    else:
        preprocessor._channel_conversion = converts


def copy_without_waiting(preprocessor: Any) -> None:
    """Let a preprocessor copy from pinned memory without waiting; mmseg's takes no argument."""
    preprocessor._non_blocking = True
