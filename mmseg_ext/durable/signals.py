"""The hook that saves a checkpoint when a signal stops the run."""

import signal
import threading
from pathlib import Path

import torch
from mmengine import dist
from mmengine.device import get_device
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS

from mmseg_ext.errors import RunError
from mmseg_ext.upstream import save_checkpoint

_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")  # Windows has no SIGUSR1


@HOOKS.register_module()
class StopOnSignalHook(Hook):
    """Saves a checkpoint after the iteration in which a stop signal arrived, and exits with 0.

    The signals are SIGTERM, SIGUSR1 (preemption, Slurm's time limit) and Ctrl-C. If any process
    receives one, all processes stop at the same iteration. A signal during a validation takes
    effect after the next iteration. A second Ctrl-C stops the run at once. Processes exchange their
    signals in every iteration, apart from the check for finite gradients: an accumulation has
    iterations without a step, and either hook works without the other.
    """

    priority = "LOWEST"  # after the checkpoint hook, which may already have saved

    def __init__(self):
        self._signal = 0
        self._previous: dict = {}

    def before_train(self, runner) -> None:
        if not self._previous and threading.current_thread() is threading.main_thread():
            numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
            self._previous = {number: signal.signal(number, self._note) for number in numbers}

    def after_train(self, runner) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGINT and self._signal == number:
            raise KeyboardInterrupt
        self._signal = number

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        number = self._signal
        if dist.get_world_size() > 1:  # a signal to any process stops all
            shared = torch.tensor(number, device=get_device())
            dist.all_reduce(shared, "max")
            number = int(shared)
        if not number:
            return
        name = f"{signal.Signals(number).name}: stopped after iteration {runner.iter + 1}"
        hook = next((h for h in runner.hooks if isinstance(h, CheckpointHook)), None)
        if hook is None:
            raise RunError(f"{name} without saving; add default_hooks.checkpoint to the config")
        if Path(hook.last_ckpt or "").name != hook.filename_tmpl.format(runner.iter + 1):
            save_checkpoint(hook, runner)
        runner.logger.info(f"{name} and saved {hook.last_ckpt}; --resume continues from there")
        raise SystemExit(0)
