"""Private names of mmengine, mmcv and mmsegmentation that this package uses, each with its reason.

Each is here under a public name, so that a release that renames one of them changes this file
alone. All exist in mmengine 0.10.7 to 0.10.12, mmcv 2.1 to 2.3 and mmsegmentation 1.2.2 to 1.4.2.
Methods that upstream asks subclasses to write, such as a scheduler's `_get_value`, are not listed.
"""

from collections.abc import Iterator

from mmengine.hooks import CheckpointHook
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader


def resume_from(runner: Runner, path: str | None) -> None:
    """Resume from this checkpoint, or start anew with None; mmengine takes it at construction."""
    runner._load_from = path
    runner._resume = path is not None


def searches_checkpoint(runner: Runner) -> bool:
    """Whether the Runner is to resume, from a checkpoint that nobody has named."""
    return runner._resume and runner._load_from is None and not runner._has_loaded


def built_dataloaders(runner: Runner) -> Iterator[DataLoader]:
    """The data loaders of the loops that are built; the public properties would build the rest."""
    for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
        if hasattr(loop, "dataloader"):
            yield loop.dataloader


def validates_at(loop: IterBasedTrainLoop, iteration: int) -> bool:
    """Whether the loop validates after this iteration; its `run` decides and does not tell."""
    if iteration < loop.val_begin:
        return False
    loop._decide_current_val_interval()  # of `dynamic_intervals`
    return iteration % loop.val_interval == 0 or iteration == loop.max_iters


def save_checkpoint(hook: CheckpointHook, runner: Runner) -> None:
    """Save the state after this iteration, out of turn; the hook's public methods ask the interval.

    Unlike `_save_checkpoint`, it does not count an unfinished epoch as done.
    """
    step = runner.iter + 1
    hook._save_checkpoint_with_step(runner, step, {"epoch": runner.epoch, "iter": step})
