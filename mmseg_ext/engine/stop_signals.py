"""SIGTERM, SIGUSR1 (pre-emption, the end of a Slurm job's time) and Ctrl-C: save, say so, end."""

import signal
import threading

import torch
from mmengine import dist
from mmengine.device import get_device
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS

from mmseg_ext.engine.checkpoint_hook import DurableCheckpointHook
from mmseg_ext.errors import RunError
from mmseg_ext.upstream import save_checkpoint

NAMES = ("SIGTERM", "SIGUSR1", "SIGINT")  # Windows has no SIGUSR1
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


@HOOKS.register_module()
class StopOnSignalHook(Hook):
    """After the iteration in which a stop signal came, save a checkpoint and end with status 0.

    In several processes, one that has the signal stops all of them at the same iteration. A signal
    during a validation ends it at once where the iteration before it has its checkpoint, and else
    is answered after the next iteration. A second Ctrl-C ends the run at once.
    """

    priority = "LOWEST"  # after the checkpoint hook, which may have saved already

    def __init__(self):
        self._signal = 0
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
        number = self._signal
        if dist.get_world_size() > 1:  # one that any process has stops all of them
            shared = torch.tensor(number, device=get_device())
            dist.all_reduce(shared, "max")
            number = int(shared)
        if number:
            self._stop(runner, number, runner.iter + 1, _save(runner, number))

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if not self._signal or dist.get_world_size() > 1 or not self._previous:
            return
        hook = _checkpoint_hook(runner)
        if isinstance(hook, DurableCheckpointHook) and hook.saved_at(runner.iter):
            self._stop(runner, self._signal, runner.iter, hook.last_ckpt)

    def _stop(self, runner, number: int, iteration: int, path: str) -> None:
        runner.logger.info(
            f"{signal.Signals(number).name}: stopped after iteration {iteration} with everything "
            f"saved in {path}; --resume goes on from there"
        )
        self.release()
        raise SystemExit(0)


def _checkpoint_hook(runner) -> CheckpointHook | None:
    return next((h for h in runner.hooks if isinstance(h, CheckpointHook)), None)


def _save(runner, number: int) -> str:
    hook = _checkpoint_hook(runner)
    if hook is None:
        raise RunError(
            f"{signal.Signals(number).name}: stopped after iteration {runner.iter + 1}, and "
            "nothing was saved: the config has no default_hooks.checkpoint"
        )
    if isinstance(hook, DurableCheckpointHook):
        return hook.save_now(runner)
    save_checkpoint(hook, runner)
    return hook.last_ckpt
