"""mmengine's `CheckpointHook` with the order turned round: first the newer, then the older goes.

mmengine removes the checkpoint that is one too many before it writes the next, and writes
`last_checkpoint` in place. Here the newer file is whole and `last_checkpoint` names it before
anything is removed. The files are written by `DurableRunner.save_checkpoint`.
"""

from collections import deque
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS

from mmseg_ext.checkpoint.writing import LAST, remove_parts, write_text
from mmseg_ext.engine.launch_error import LaunchError


class _RemovesLater:
    """A file backend that keeps what is to be removed for later."""

    def __init__(self, backend):
        self.backend = backend
        self.paths: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.paths.append(path)


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """As `CheckpointHook`, with its arguments; needs `runner_type = 'DurableRunner'`.

    Raises:
        LaunchError: at the start of training, with another runner.
    """

    def before_train(self, runner) -> None:
        if not hasattr(runner, "restore_process_state"):
            raise LaunchError(
                "DurableCheckpointHook needs runner_type = 'DurableRunner', as "
                "configs/_base_/default_runtime.py sets it"
            )
        ids = runner.message_hub.get_info("keep_ckpt_ids", [])
        super().before_train(runner)
        if is_main_process():
            Path(self.out_dir).mkdir(parents=True, exist_ok=True)
            remove_parts(self.out_dir)
            for step in runner.message_hub.get_info("leaving_ckpt_ids", []):
                if step not in ids:  # the run ended between the newer's rename and this removal
                    self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return Path(self.out_dir, self.filename_tmpl.format(step))

    def saved_now(self, runner) -> bool:
        """Whether the newest checkpoint is of this very iteration."""
        return self.last_ckpt is not None and Path(self.last_ckpt) == self._path(runner.iter + 1)

    def save_now(self, runner) -> str:
        """Save, out of turn, after the step of this iteration; the path."""
        if not self.saved_now(runner):
            step = runner.iter + 1
            self._save_checkpoint_with_step(runner, step, {"epoch": runner.epoch, "iter": step})
        return self.last_ckpt

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        leaving = []
        if self.max_keep_ckpts > 0:
            ids = [i for i in self.keep_ckpt_ids if i != step] + [step]
            leaving, ids = ids[: -self.max_keep_ckpts], ids[-self.max_keep_ckpts :]
            self.keep_ckpt_ids = deque(ids, self.max_keep_ckpts)
            runner.message_hub.update_info("keep_ckpt_ids", ids)
            runner.message_hub.update_info("leaving_ckpt_ids", leaving)
        path = self._path(step)
        runner.message_hub.update_info("last_ckpt", str(path))
        runner.save_checkpoint(
            self.out_dir,
            path.name,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            **self.args,
        )
        self.last_ckpt = str(path)
        if is_main_process():
            write_text(self.last_ckpt, Path(runner.work_dir, LAST))
            for old in leaving:
                self._path(old).unlink(missing_ok=True)

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        backend, self.file_backend = self.file_backend, _RemovesLater(self.file_backend)
        try:
            super()._save_best_checkpoint(runner, metrics)
            old = self.file_backend.paths
        finally:
            self.file_backend = backend
        if not self.save_best:
            return
        paths = getattr(self, "best_ckpt_path_dict", None)
        new = set(paths.values()) if paths is not None else {self.best_ckpt_path}
        for path in old:
            if path not in new:
                Path(path).unlink(missing_ok=True)
