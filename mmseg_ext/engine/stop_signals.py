"""SIGTERM and SIGUSR1 (pre-emption, the end of a Slurm job's time): save, say so, end with 0."""

import signal
import threading

import torch
from mmengine import dist
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmseg_ext.engine.checkpoint_hook import DurableCheckpointHook
from mmseg_ext.engine.run_error import StoppedBySignal
from mmseg_ext.engine.skipped_images import SkippedImagesHook

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@HOOKS.register_module()
class StopOnSignalHook(Hook):
    """After the iteration in which a stop signal came, save a checkpoint and end with status 0.

    In several processes, one that has the signal stops all of them at the same iteration. A signal
    during a validation ends it at once where the iteration before it has its checkpoint, and else
    is answered after the next iteration.
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
        self._signal = number

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        number = self._agreed()
        if number:
            path = self._checkpoints(runner).save_now(runner)
            self._stop(runner, number, runner.iter + 1, path)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if self._signal is None or dist.get_world_size() > 1 or not self._previous:
            return
        hook = self._checkpoints(runner)
        if hook.last_ckpt is not None and hook.last_ckpt == str(hook._path(runner.iter)):
            self._stop(runner, self._signal, runner.iter, hook.last_ckpt)

    def _agreed(self) -> int:
        """The signal that any process has, in all of them; 0 where none has."""
        if dist.get_world_size() == 1:
            return self._signal or 0
        number = torch.tensor(self._signal or 0, device=get_device())
        dist.all_reduce(number, "max")
        return int(number)

    def _checkpoints(self, runner) -> DurableCheckpointHook:
        return next(h for h in runner.hooks if isinstance(h, DurableCheckpointHook))

    def _stop(self, runner, number: int, iteration: int, path: str) -> None:
        name = signal.Signals(number).name
        runner.logger.info(
            f"{name}: stopped after iteration {iteration} with everything saved in {path}; "
            "--resume goes on from there"
        )
        for hook in runner.hooks:
            if isinstance(hook, SkippedImagesHook):
                hook.report(runner)
        self.release()
        raise StoppedBySignal(0)
