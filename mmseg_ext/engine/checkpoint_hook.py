"""mmengine's `CheckpointHook` in another order: the newer one is written, then the older goes.

mmengine removes the checkpoint that is one too many before it writes the next, and trusts the paths
in a resumed checkpoint: it removes the file or the folder that one names as the older best. Here
removals wait until the newer file is whole, and only files in the run's own folder are removed.
`DurableRunner.save_checkpoint` writes the files.
"""

from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS

from mmseg_ext.atomic_write import remove_parts, write_text
from mmseg_ext.checkpoint.loading import SafeLoading
from mmseg_ext.checkpoint.resuming import RUN, all_checkpoints, run_of
from mmseg_ext.upstream import save_checkpoint


def checkpoint_folder(cfg: Config) -> Path:
    """Where the run of a config has its checkpoints: the work directory, or in `out_dir`."""
    hook = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    work_dir = Path(cfg.work_dir)
    return Path(hook["out_dir"], work_dir.name) if hook.get("out_dir") else work_dir


class _Postponing:
    """A file backend that notes what it is asked to remove."""

    def __init__(self, backend):
        self.backend = backend
        self.asked: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.asked.append(path)

    def rmtree(self, path: str) -> None:
        """Checkpoints are files: a folder is somebody else's."""


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """As `CheckpointHook`, with its arguments, for `runner_type = 'DurableRunner'`."""

    def before_train(self, runner) -> None:
        folder, hub = checkpoint_folder(runner.cfg), runner.message_hub
        for key, value in list(hub.runtime_info.items()):
            if key.startswith("best_ckpt") and value is not None:
                path = folder / Path(str(value)).name
                hub.update_info(key, str(path) if path.is_file() else None)
        kept = [s for s in hub.runtime_info.get("keep_ckpt_ids") or [] if type(s) is int]
        hub.update_info("keep_ckpt_ids", kept[-max(self.max_keep_ckpts, 0) :])
        super().before_train(runner)
        if is_main_process() and hasattr(runner, "run_id"):  # a `DurableRunner`
            self._tidy(runner)

    def _tidy(self, runner) -> None:
        """Remove what this run left between a write and a removal; name what others left."""
        folder = Path(self.out_dir)
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        for path in folder.glob("best_*.pth"):
            if str(path) not in self._best() and run_of(path) == runner.run_id:
                path.unlink()
        others = []
        for path in all_checkpoints(folder):
            if run_of(path) != runner.run_id:
                others.append(path.name)
            elif self.max_keep_ckpts > 0 and _step(path) < min(self.keep_ckpt_ids, default=0):
                path.unlink()
        if others:
            runner.logger.warning(
                f"{folder} holds checkpoints of an earlier run ({', '.join(sorted(others))}); this "
                "run writes over those of the same names and leaves the others. To go on from one: "
                "--resume --cfg-options load_from=FILE"
            )
        write_text(runner.run_id, folder / RUN)

    def _best(self) -> list[str]:
        """The best checkpoints that there are."""
        paths = getattr(self, "best_ckpt_path_dict", {"": getattr(self, "best_ckpt_path", None)})
        return [path for path in paths.values() if path]

    def saved_at(self, step: int) -> bool:
        """Whether the newest checkpoint is of this iteration."""
        name = self.filename_tmpl.format(step)
        return self.last_ckpt is not None and Path(self.last_ckpt).name == name

    def save_now(self, runner) -> str:
        """Save, out of turn, after the step of this iteration; the path."""
        if not self.saved_at(runner.iter + 1):
            self._write_then_remove(save_checkpoint, self, runner)
        return self.last_ckpt

    def after_train_iter(self, *args, **kwargs) -> None:
        self._write_then_remove(super().after_train_iter, *args, **kwargs)

    def after_train_epoch(self, *args, **kwargs) -> None:
        self._write_then_remove(super().after_train_epoch, *args, **kwargs)

    def after_val_epoch(self, *args, **kwargs) -> None:
        self._write_then_remove(super().after_val_epoch, *args, **kwargs)

    def _write_then_remove(self, write: Callable, *args, **kwargs) -> None:
        """Call `write`, and remove after it what it wanted to remove before."""
        backend, self.file_backend = self.file_backend, _Postponing(self.file_backend)
        try:
            write(*args, **kwargs)
            asked = self.file_backend.asked
        finally:
            self.file_backend = backend
        for path in set(asked) - set(self._best()):
            Path(path).unlink(missing_ok=True)

    def after_train(self, runner) -> None:
        with SafeLoading():  # `published_keys` reads checkpoints
            super().after_train(runner)


def _step(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])
