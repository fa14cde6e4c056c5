"""Hooks that a `DurableRunner` adds to every run.

They are not in configs, because a run resumes exactly only with all of them. `run_state` has
another one, `ProcessStateHook`, next to the states that it stores.
"""

from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, LogProcessor

from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.upstream import validates_at


class PlainCheckpointHook(Hook):
    """Makes all data of a checkpoint plain, after other hooks have added theirs."""

    priority = "LOWEST"

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint["processes"] = checkpoint["meta"].pop("processes")
        dropped: list[str] = []
        for key, value in checkpoint.items():
            checkpoint[key] = to_plain(value, key, dropped)
        info = checkpoint["message_hub"]["runtime_info"]
        for key, path in info.items():
            if key.startswith(("best_ckpt", "last_ckpt")) and path is not None:
                info[key] = Path(path).name  # a copied folder must not refer to the original
        if dropped:
            runner.logger.warning(f"checkpoint: left out, because not plain data: {dropped}")


class RepeatValidationHook(Hook):
    """Runs the validation of the iteration or epoch at which a resumed checkpoint was saved."""

    priority = "LOWEST"  # other hooks start before

    def before_train(self, runner) -> None:  # epochs have no later point if all are done
        loop, hub = runner.train_loop, runner.message_hub
        if runner.iter > 0:  # as between the iterations of a loop
            hub.update_info("iter", runner.iter - 1)
        if isinstance(loop, EpochBasedTrainLoop):
            unit, step, last = "epoch", runner.epoch, loop.max_epochs
            iteration = step * len(loop.dataloader)
        elif isinstance(loop, IterBasedTrainLoop):
            unit, step, last = "iteration", runner.iter, loop.max_iters
            iteration = step
        else:
            return
        if runner.val_loop is None or step == 0:
            return
        if hub.runtime_info.get("last_validation", -1) >= iteration:
            return
        if not validates_at(loop, step, last):
            return
        runner.logger.info(f"repeating the validation of {unit} {step}")
        if unit == "epoch":
            hub.update_info("epoch", runner.epoch - 1)
        runner.val_loop.run()


class ShortHistoryHook(Hook):
    """Limits the history of training and validation to what the log processor reads.

    mmengine appends each logged value to an array of the complete history, which is also in each
    checkpoint, so the cost of an iteration would grow with the run. The complete history stays if a
    window of the log processor is 'epoch' or 'global', or with another class of log processors.
    """

    priority = "HIGHEST"  # before the iteration's values are added

    _length: int | None = None

    def before_train(self, runner) -> None:
        processor = runner.log_processor
        if type(processor) is not LogProcessor:
            return
        windows: list[Any] = [processor.window_size]
        for column in processor.custom_cfg:
            windows.append(column.get("window_size"))
        if any(type(window) is not int for window in windows):  # 'global'
            return
        # At the end of a validation its times are averaged.
        batches = 0 if runner.val_loop is None else len(runner.val_dataloader)
        self._length = max(*windows, batches)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if self._length is not None:
            for history in runner.message_hub.log_scalars.values():
                history.max_length = self._length  # used when the next value is added
