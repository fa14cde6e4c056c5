"""SIGTERM, SIGUSR1 (pre-emption, the end of a Slurm job's time) and Ctrl-C: save, say so, end."""

import signal
import threading

import torch
from mmengine import dist
from mmengine.device import get_device
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS

from mmseg_ext.engine.checkpoint_hook import DurableCheckpointHook
from mmseg_ext.errors import RunError, StoppedBySignal
from mmseg_ext.upstream import save_checkpoint

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@HOOKS.register_module()
class StopOnSignalHook(Hook):
    """After the iteration in which a stop signal came, save a checkpoint and end with status 0.

    In several processes, one that has the signal stops all of them at the same iteration. A signal
    during a validation ends it at once where the iteration before it has its checkpoint, and else
    is answered after the next iteration. A second Ctrl-C ends the run at once.
    """

    priority = "LOWEST"  # after the checkpoint hook, which may have saved already

    def __init__(self):
        self._signal: int | None = None
        self._previous: dict = {}

    def before_train(self, runner) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._note) for s in SIGNALS}

    def after_train(self, runner) -> None:
        self.release()

    def release(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGINT and self._signal == number:
            raise KeyboardInterrupt
        self._signal = number

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        number = self._agreed()
        if number:
            self._stop(runner, number, runner.iter + 1, self._save(runner, number))

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if self._signal is None or dist.get_world_size() > 1 or not self._previous:
            return
        hook = self._checkpoints(runner)
        if isinstance(hook, DurableCheckpointHook) and hook.saved_at(runner.iter):
            self._stop(runner, self._signal, runner.iter, hook.last_ckpt)

    def _agreed(self) -> int:
        """The signal that any process has, in all of them; 0 where none has."""
        if dist.get_world_size() == 1:
            return self._signal or 0
        number = torch.tensor(self._signal or 0, device=get_device())
        dist.all_reduce(number, "max")
        return int(number)

    def _checkpoints(self, runner) -> CheckpointHook | None:
        return next((h for h in runner.hooks if isinstance(h, CheckpointHook)), None)

    def _save(self, runner, number: int) -> str:
        hook = self._checkpoints(runner)
        if hook is None:
            raise RunError(
                f"{signal.Signals(number).name}: stopped after iteration {runner.iter + 1}, and "
                "nothing was saved: the config has no default_hooks.checkpoint"
            )
        if not isinstance(hook, DurableCheckpointHook):
            save_checkpoint(hook, runner)
            return hook.last_ckpt
        return hook.save_now(runner)

    def _stop(self, runner, number: int, iteration: int, path: str) -> None:
        name = signal.Signals(number).name
        runner.logger.info(
            f"{name}: stopped after iteration {iteration} with everything saved in {path}; "
            "--resume goes on from there"
        )
        self.release()
        raise StoppedBySignal(0)
