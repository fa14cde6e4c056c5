"""mmengine's `CheckpointHook` with the order turned round: first the newer, then the older goes.

mmengine removes the checkpoint that is one too many before it writes the next, writes
`last_checkpoint` in place, and trusts the paths in a resumed checkpoint: it removes the file or the
folder that one names as the older best. Here the newer file is whole and `last_checkpoint` names it
before anything is removed; records hold names without folders; and what is removed are files of
this run in its own folder. The files are written by `DurableRunner.save_checkpoint`.
"""

import re
from collections import deque
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS

from mmseg_ext.atomic_write import remove_parts, write_text
from mmseg_ext.checkpoint.resuming import LAST, RUN, all_checkpoints, run_of
from mmseg_ext.checkpoint.safe_loading import SafeLoading
from mmseg_ext.errors import LaunchError

_BEST = re.compile(r"best_.+_(iter|epoch)_\d+\.pth")


def checkpoint_folder(cfg: Config) -> Path:
    """Where the run of a config has its checkpoints: the work directory, or in `out_dir`."""
    hook = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    work_dir = Path(cfg.work_dir)
    return Path(hook["out_dir"], work_dir.name) if hook.get("out_dir") else work_dir


class _RemovesNothing:
    """A file backend for the base class, which removes too early; the paths are kept."""

    def __init__(self, backend):
        self.backend = backend
        self.paths: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.paths.append(path)

    def rmtree(self, path: str) -> None:
        pass


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """As `CheckpointHook`, with its arguments; needs `runner_type = 'DurableRunner'`.

    Raises:
        LaunchError: at the start of training, with another runner.
    """

    def before_train(self, runner) -> None:
        if not hasattr(runner, "run_id"):
            raise LaunchError(
                "DurableCheckpointHook needs runner_type = 'DurableRunner', as "
                "configs/_base_/default_runtime.py sets it"
            )
        hub = runner.message_hub
        kept, leaving = (
            [step for step in hub.runtime_info.get(key) or [] if type(step) is int]
            for key in ("keep_ckpt_ids", "leaving_ckpt_ids")
        )
        if self.max_keep_ckpts > 0:
            leaving += kept[: -self.max_keep_ckpts]
            kept = kept[-self.max_keep_ckpts :]
        hub.update_info("keep_ckpt_ids", kept)
        super().before_train(runner)
        folder = Path(self.out_dir)
        for key, name in list(hub.runtime_info.items()):
            if key.startswith("best_ckpt"):
                path = folder / Path(str(name)).name
                self._set_best(key, str(path) if _is_best(path) else None)
        if not is_main_process():
            return
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        for step in leaving:  # the run ended between the newer's rename and this removal
            if step not in kept and run_of(self._path(step)) == runner.run_id:
                _remove(self._path(step))
        best = {Path(path) for path in self._best()}
        for path in folder.glob("best_*.pth"):  # the run ended before a checkpoint named it
            if path not in best and _is_best(path) and run_of(path) == runner.run_id:
                _remove(path)
        others = [p.name for p in all_checkpoints(folder) if run_of(p) != runner.run_id]
        if others:
            runner.logger.warning(
                f"{folder} holds checkpoints of an earlier run ({', '.join(sorted(others))}); this "
                "run writes over those of the same names and leaves the others. To go on from one: "
                "--resume --cfg-options load_from=FILE"
            )
        write_text(runner.run_id, folder / RUN)

    def _best(self) -> list[str]:
        """The best checkpoints that there are."""
        paths = getattr(self, "best_ckpt_path_dict", None)
        found = paths.values() if paths is not None else [getattr(self, "best_ckpt_path", None)]
        return [path for path in found if path]

    def _set_best(self, key: str, path: str | None) -> None:
        if key == "best_ckpt":
            self.best_ckpt_path = path
        elif hasattr(self, "best_ckpt_path_dict"):
            self.best_ckpt_path_dict[key.removeprefix("best_ckpt_")] = path

    def _path(self, step: int) -> Path:
        return Path(self.out_dir, self.filename_tmpl.format(step))

    def saved_at(self, step: int) -> bool:
        """Whether the newest checkpoint is of this iteration."""
        return self.last_ckpt is not None and Path(self.last_ckpt) == self._path(step)

    def save_now(self, runner) -> str:
        """Save, out of turn, after the step of this iteration; the path."""
        step = runner.iter + 1
        if not self.saved_at(step):
            self._save_checkpoint_with_step(runner, step, {"epoch": runner.epoch, "iter": step})
        return self.last_ckpt

    def after_train(self, runner) -> None:
        with SafeLoading():  # `published_keys` reads checkpoints
            super().after_train(runner)

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        leaving = []
        if self.max_keep_ckpts > 0:
            ids = [i for i in self.keep_ckpt_ids if i != step] + [step]
            leaving, ids = ids[: -self.max_keep_ckpts], ids[-self.max_keep_ckpts :]
            self.keep_ckpt_ids = deque(ids, self.max_keep_ckpts)
            runner.message_hub.update_info("keep_ckpt_ids", ids)
            runner.message_hub.update_info("leaving_ckpt_ids", leaving)
        path = self._path(step)
        runner.message_hub.update_info("last_ckpt", path.name)
        self._write(runner, path.name, meta)
        self.last_ckpt = str(path)
        if is_main_process():
            write_text(path.name, Path(self.out_dir, LAST))
            for old in leaving:
                _remove(self._path(old))

    def _write(self, runner, name: str, meta: dict) -> None:
        runner.save_checkpoint(
            self.out_dir,
            name,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            **self.args,
        )

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        backend, self.file_backend = self.file_backend, _RemovesNothing(self.file_backend)
        try:
            super()._save_best_checkpoint(runner, metrics)
            old = self.file_backend.paths
        finally:
            self.file_backend = backend
        if is_main_process():
            for path in set(old) - set(self._best()):
                _remove(Path(path))


def _is_best(path: Path) -> bool:
    return path.is_file() and _BEST.fullmatch(path.name) is not None


def _remove(path: Path) -> None:
    """Remove a file, never a folder."""
    if path.is_file() or path.is_symlink():
        path.unlink(missing_ok=True)
