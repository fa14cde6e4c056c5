"""Hooks that save: before an old checkpoint is removed, and before a signal stops the run.

mmengine first removes the oldest checkpoint and then writes the next. It also removes any file or
folder that a resumed checkpoint names as the older best. Here only files in the run's own folder
are removed, after `DurableRunner.save_checkpoint` has written the new one.
"""

import signal
import threading
from pathlib import Path

import torch
from mmengine import dist
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS

from mmseg_ext.atomic_write import remove_parts, write_text
from mmseg_ext.checkpoint.files import RUN, all_checkpoints, run_of
from mmseg_ext.errors import RunError
from mmseg_ext.upstream import save_checkpoint

_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")  # Windows has no SIGUSR1


def checkpoint_folder(cfg: Config) -> Path:
    """Return the folder of a config's checkpoints: the work directory, or one in `out_dir`."""
    hook = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    work_dir = Path(cfg.work_dir)
    return Path(hook["out_dir"], work_dir.name) if hook.get("out_dir") else work_dir


class _PostponedRemovals(LocalBackend):
    """Collects the paths of files instead of removing them."""

    def __init__(self):
        self.paths: set[str] = set()

    def remove(self, path: str) -> None:
        self.paths.add(path)

    def rmtree(self, path: str) -> None:
        """Do nothing: checkpoints are files, so a folder belongs to someone else."""


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """`CheckpointHook` with the same arguments, for `runner_type = 'DurableRunner'`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for name in self.args:  # which mmengine would pass to the first `save_checkpoint`
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument '{name}'")

    def before_train(self, runner) -> None:
        # A resumed checkpoint, perhaps a copied or crafted one, must not name files elsewhere.
        folder, hub = checkpoint_folder(runner.cfg), runner.message_hub
        for key, value in list(hub.runtime_info.items()):
            if key.startswith("best_ckpt") and value is not None:
                path = folder / Path(str(value)).name
                hub.update_info(key, str(path) if path.is_file() else None)
        kept = [s for s in hub.runtime_info.get("keep_ckpt_ids") or [] if type(s) is int]
        hub.update_info("keep_ckpt_ids", kept)
        super().before_train(runner)
        self.file_backend = _PostponedRemovals()
        if dist.is_main_process() and hasattr(runner, "run_id"):  # a `DurableRunner`
            self._own_folder(runner)

    def _own_folder(self, runner) -> None:
        """Remove files that a kill left behind, and warn of another run's checkpoints."""
        folder = Path(self.out_dir)
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        for path in folder.glob("best_*.pth"):
            if str(path) not in self._best() and run_of(path) == runner.run_id:
                path.unlink()
        others = [path.name for path in all_checkpoints(folder) if run_of(path) != runner.run_id]
        if others:
            runner.logger.warning(
                f"{folder}: contains checkpoints of an earlier run ({', '.join(sorted(others))}), "
                "and this run overwrites files with the same names; to continue the earlier run, "
                "use --resume --cfg-options load_from=FILE"
            )
        write_text(runner.run_id, folder / RUN)

    def _best(self) -> set[str | None]:
        """Return the paths of the best checkpoints."""
        paths = getattr(self, "best_ckpt_path_dict", {"": getattr(self, "best_ckpt_path", None)})
        return set(paths.values())

    def _save_checkpoint_with_step(self, *args, **kwargs) -> None:
        super()._save_checkpoint_with_step(*args, **kwargs)
        self._remove_old()

    def _save_best_checkpoint(self, *args, **kwargs) -> None:
        super()._save_best_checkpoint(*args, **kwargs)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove what mmengine wanted to remove before it wrote the newer files."""
        old, self.file_backend.paths = self.file_backend.paths - self._best(), set()
        for path in old:
            Path(path).unlink(missing_ok=True)


@HOOKS.register_module()
class StopOnSignalHook(Hook):
    """Saves a checkpoint after the iteration in which a stop signal arrived, and exits with 0.

    The signals are SIGTERM, SIGUSR1 (preemption, Slurm's time limit) and Ctrl-C. If any process
    receives one, all processes stop at the same iteration. A signal during a validation takes
    effect after the next iteration. A second Ctrl-C stops the run at once.
    """

    priority = "LOWEST"  # after the checkpoint hook, which may already have saved

    def __init__(self):
        self._signal = 0
        self._previous: dict = {}

    def before_train(self, runner) -> None:
        if threading.current_thread() is threading.main_thread():
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
