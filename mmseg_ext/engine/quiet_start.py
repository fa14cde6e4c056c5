"""The start of a training on the terminal: ten lines that say what is trained and where things are.

mmengine logs four hundred lines before the first iteration. They go to the log file alone.
"""

import logging

from torch import nn

# The environment, the config and the order of the hooks.
_LONG = ("-----", "Config:", "Hooks will be executed in the following order")


def quiet_terminal(logger: logging.Logger) -> None:
    """Spare the logger's terminal the long records of the start; its files get every line."""
    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(_is_short)


def _is_short(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or not record.getMessage().lstrip().startswith(_LONG)


def summary(runner, record: dict) -> list[str]:
    """Lines about a training that is about to start; `record` is that of `describe_run`."""
    model, loop = runner.model, runner.train_loop
    while isinstance(getattr(model, "module", None), nn.Module):  # out of wrappers
        model = model.module
    parts = [type(m).__name__ for n, m in model.named_children() if n != "data_preprocessor"]
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    data = kind = runner.train_dataloader.dataset
    while hasattr(kind, "dataset"):  # out of wrappers
        kind = kind.dataset
    return [
        f"model: {type(model).__name__} of {', '.join(parts)}; {millions:.2f} M parameters",
        f"data: {type(kind).__name__}, {len(data):,} images; batch: {record['world_size']} x "
        f"{record['batch_per_process']}, gradients of {record['accumulated_batches']} a step",
        f"schedule: from {runner.iter:,} to {loop.max_iters:,} iterations, learning rate "
        f"{record['learning_rate']} x {record['learning_rate_factor']:g}",
        f"on: {', '.join(record['devices'])}; {record['precision']}; seed {record['seed']}",
        f"log and config: {runner.log_dir}",
    ]
