"""A `CheckpointHook` that writes the new checkpoint before it removes an old one.

mmengine first removes the oldest checkpoint and then writes the next. It also removes any file or
folder that a resumed checkpoint names as the older best. Here only files in the run's own folder
are removed, after `DurableRunner.save_checkpoint` has written the new one.
"""

from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS

from mmseg_ext.atomic_write import remove_parts, write_text
from mmseg_ext.checkpoint.resuming import RUN, all_checkpoints, run_of
from mmseg_ext.upstream import save_checkpoint


def checkpoint_folder(cfg: Config) -> Path:
    """Return the folder of a config's checkpoints: the work directory, or one in `out_dir`."""
    hook = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    work_dir = Path(cfg.work_dir)
    return Path(hook["out_dir"], work_dir.name) if hook.get("out_dir") else work_dir


class _PostponedRemovals:
    """A file backend that collects the paths of files instead of removing them."""

    def __init__(self, backend):
        self.backend = backend
        self.paths: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.paths.append(path)

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
        if is_main_process() and hasattr(runner, "run_id"):  # a `DurableRunner`
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

    def _best(self) -> list[str]:
        """Return the paths of the best checkpoints."""
        paths = getattr(self, "best_ckpt_path_dict", {"": getattr(self, "best_ckpt_path", None)})
        return [path for path in paths.values() if path]

    def save_now(self, runner) -> None:
        """Save after the step of the current iteration, whatever the interval."""
        name = self.filename_tmpl.format(runner.iter + 1)
        if self.last_ckpt is None or Path(self.last_ckpt).name != name:
            self._write_then_remove(save_checkpoint, self, runner)

    def after_train_iter(self, *args, **kwargs) -> None:
        self._write_then_remove(super().after_train_iter, *args, **kwargs)

    def after_train_epoch(self, *args, **kwargs) -> None:
        self._write_then_remove(super().after_train_epoch, *args, **kwargs)

    def after_val_epoch(self, *args, **kwargs) -> None:
        self._write_then_remove(super().after_val_epoch, *args, **kwargs)

    def _write_then_remove(self, write: Callable, *args, **kwargs) -> None:
        """Call `write`, and remove the files that it wants to remove after it succeeded."""
        backend, self.file_backend = self.file_backend, _PostponedRemovals(self.file_backend)
        try:
            write(*args, **kwargs)
            paths = self.file_backend.paths
        finally:
            self.file_backend = backend
        for path in set(paths) - set(self._best()):
            Path(path).unlink(missing_ok=True)
