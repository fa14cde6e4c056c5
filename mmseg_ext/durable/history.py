"""A short history of the logged values, so the cost of an iteration does not grow with the run.

mmengine appends each logged value to an array of the complete history, and a checkpoint contains
these arrays.
"""

from mmengine.hooks import Hook
from mmengine.runner import LogProcessor


class ShortHistoryHook(Hook):
    """Limits the history of training and validation to what the log processor reads.

    The complete history stays if a window of the log processor is 'epoch' or 'global', or with
    another class of log processors.
    """

    priority = "HIGHEST"  # before the iteration's values are added

    def __init__(self):
        self._lengths: dict[str, int] = {}

    def before_train(self, runner) -> None:
        processor = runner.log_processor
        windows = [processor.window_size, *(c.get("window_size") for c in processor.custom_cfg)]
        if type(processor) is not LogProcessor or {type(size) for size in windows} != {int}:
            return
        # At the end of a validation its times are averaged.
        batches = 0 if runner.val_loop is None else len(runner.val_dataloader)
        self._lengths = {"train": max(windows), "val": max(*windows, batches)}

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        for name, history in runner.message_hub.log_scalars.items():
            length = self._lengths.get(name.partition("/")[0])
            if length is not None:
                history.max_length = length  # used when the next value is added
