"""The start of a training on the terminal: ten lines that say what is trained and where things are.

mmengine logs the environment, the whole config and the order of the hooks before the first
iteration: four hundred lines. They go to the log file alone.
"""

import logging
from pathlib import Path

from mmengine.model import is_model_wrapper

# What the records begin with: the environment, the config and the order of the hooks.
_LONG = ("-----", "Config:", "Hooks will be executed in the following order")


class ShortStart(logging.Filter):
    """What the terminal is spared: mmengine's long records of the start, and nothing else."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not record.getMessage().lstrip().startswith(_LONG)


def quiet_terminal(logger: logging.Logger) -> None:
    """Spare the logger's terminal the long records of the start; its files get every line."""
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler):
            continue
        if not any(isinstance(f, ShortStart) for f in handler.filters):
            handler.addFilter(ShortStart())


def summary(runner, record: dict) -> list[str]:
    """Lines about a training that is about to start; `record` is that of `describe_run`."""
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    parts = [type(m).__name__ for n, m in model.named_children() if n != "data_preprocessor"]
    loop, cfg, folder = runner.train_loop, runner.cfg, Path(runner.log_dir)
    data = runner.train_dataloader.dataset
    kind = data
    while hasattr(kind, "dataset"):  # out of wrappers
        kind = kind.dataset
    return [
        f"model: {type(model).__name__} of {', '.join(parts)}; "
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters",
        f"data: {type(kind).__name__}, {len(data):,} images"
        + (f"; {len(runner.val_dataloader.dataset):,} for validation" if runner.val_loop else ""),
        f"batch: {record['world_size']} x {record['batch_per_process']} images, gradients of "
        f"{record['accumulated_batches']} batches a step",
        f"rate: {cfg.optim_wrapper.optimizer.type}, {record['learning_rate']} "
        f"x {record['learning_rate_factor']:g}",
        f"schedule: from {runner.iter:,} to {loop.max_iters:,} iterations"
        + (f", a validation every {loop.val_interval:,}" if runner.val_loop else ""),
        f"on: {', '.join(record['devices'])}; {record['precision']}; seed {record['seed']}",
        f"work directory: {runner.work_dir}",
        f"log and config: {folder}",
    ]
