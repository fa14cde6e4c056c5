"""The hooks that save checkpoints: at intervals, with scores, and when a signal stops the run.

mmengine first removes the oldest checkpoint and then writes the next. It also removes any file or
folder that a resumed checkpoint names as the older best. Here only files in the run's own folder
are removed, after `DurableRunner.save_checkpoint` has written the new one.
"""

import os
import signal
import threading
from collections import deque
from pathlib import Path

import torch
from mmengine import dist
from mmengine.device import get_device
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop

from mmseg_ext.atomic_write import remove_parts, write_text
from mmseg_ext.checkpoint.files import LAST, origin_of
from mmseg_ext.durable.work_dir import (
    RUN,
    checkpoint_folder,
    find_checkpoints,
    on_rank_zero,
    replaced_checkpoints,
    series_of,
)
from mmseg_ext.errors import RunError
from mmseg_ext.upstream import save_checkpoint

_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")  # Windows has no SIGUSR1


class _RemovesNothing(LocalBackend):
    """Finds no file, so mmengine removes none before the newer one is complete."""

    def isfile(self, filepath: str | Path) -> bool:
        return False

    def isdir(self, filepath: str | Path) -> bool:
        return False


def name_own_files(runner) -> Path:
    """Give the files that the message hub names absolute paths in the run's folder; return it."""
    folder = Path(os.path.abspath(checkpoint_folder(runner.cfg)))
    for key, value in list(runner.message_hub.runtime_info.items()):
        if key.startswith(("best_ckpt", "last_ckpt")) and value is not None:
            path = folder / Path(str(value)).name
            known = key == "last_ckpt" or path.is_file()
            runner.message_hub.update_info(key, str(path) if known else None)
    return folder


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """`CheckpointHook` with the same arguments, for `runner_type = 'DurableRunner'`.

    After a validation it saves the checkpoint of the same step again, so the checkpoint contains
    the scores and names the best checkpoint.
    """

    _run: str | None = None  # the identity of a `DurableRunner`'s run
    # A higher 'IoU.crop' is better, too; mmengine knows only the means.
    _default_greater_keys = [
        *CheckpointHook._default_greater_keys,
        "IoU.",
        "Dice.",
        "Fscore.",
        "Recall.",
        "objects/F1",
        "objects/recall",
    ]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._without_score: set[str] = set()
        for name in self.args:  # which mmengine would pass to the first `save_checkpoint`
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument '{name}'")

    def before_train(self, runner) -> None:
        # A resumed checkpoint, perhaps a copied or crafted one, must not name files elsewhere.
        folder = name_own_files(runner)
        hub = runner.message_hub
        kept = []
        if self.max_keep_ckpts > 0:
            saved = hub.runtime_info.get("keep_ckpt_ids") or []
            kept = [step for step in saved if type(step) is int][-self.max_keep_ckpts :]
        hub.update_info("keep_ckpt_ids", kept)
        self._name_scores(hub)
        super().before_train(runner)
        if self.by_epoch and isinstance(runner.train_loop, IterBasedTrainLoop):
            runner.logger.warning(
                "default_hooks.checkpoint.by_epoch=True: a loop of iterations is one epoch, and is "
                "saved only at its end; set by_epoch=False"
            )
        if os.path.abspath(self.out_dir) != str(folder):  # of a second hook
            runner.logger.warning(
                f"out_dir={self.out_dir!r} of {self.filename_tmpl} is not used: all checkpoints of "
                f"a run are saved to {folder}; set default_hooks.checkpoint.out_dir"
            )
        self.out_dir = str(folder)
        self.last_ckpt = hub.runtime_info.get("last_ckpt")
        self._run = getattr(runner, "run_id", None)
        if self._run is not None:
            self.file_backend = _RemovesNothing()
            on_rank_zero(lambda: self._own_folder(runner, runner.run_id))

    def _name_scores(self, hub) -> None:
        """Name the best scores of a resumed run as mmengine does for the config's `save_best`.

        A single score has no name there, and would be compared with another metric.
        """
        keys = getattr(self, "key_indicators", ["auto"])
        if keys == ["auto"]:
            return
        saved: dict[str, tuple[str, float]] = {}  # by suffix, the best checkpoint and its score
        for name, path in list(hub.runtime_info.items()):
            if name.startswith("best_ckpt") and path:
                suffix = name.removeprefix("best_ckpt")
                hub.pop_info(name)
                saved[suffix] = path, hub.pop_info(f"best_score{suffix}")
        for key in keys:
            suffix = f"_{key}" if len(keys) > 1 else ""
            prefix = f"best_{key}_".replace("/", "_")  # best_mIoU_iter_500.pth
            # First the entry that belongs to this score if `save_best` did not change.
            for name in (suffix, *saved):
                if name in saved and Path(saved[name][0]).name.startswith(prefix):
                    path, score = saved[name]
                    hub.update_info(f"best_ckpt{suffix}", path)
                    hub.update_info(f"best_score{suffix}", score)
                    break

    def _own_folder(self, runner, run: str) -> None:
        """Remove files that a kill left behind, and warn of another run's checkpoints."""
        folder = Path(self.out_dir)
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(runner.work_dir)  # another one than `folder` with `out_dir`
        remove_parts(folder)
        remove_parts(work)
        for log in work.glob("[0-9]*_[0-9]*"):  # 20260131_235959
            if log.is_dir():
                for place in (log, *log.iterdir()):
                    remove_parts(place)
        if self.last_ckpt and Path(self.last_ckpt).is_file():
            write_text(self.last_ckpt, work / LAST)  # a stop can have come before this
        step = self._step(runner)
        if self.max_keep_ckpts > 0:
            # The resumed numbers can be another hook's: keep the run's own regular checkpoints.
            steps = []
            for path in folder.glob("*"):
                series, saved_step = series_of(path.name, self.filename_tmpl) or (None, 0)
                if series == "" and saved_step <= step and origin_of(path).run == run:
                    steps.append(saved_step)
            self.keep_ckpt_ids = deque(sorted(steps), self.max_keep_ckpts)
        self._remove_older(runner, step)
        for place in dict.fromkeys((folder, work)):  # `work` last: see `missing_checkpoint`
            write_text(run, place / RUN)
        _, of_others = find_checkpoints(runner.cfg)
        if of_others:
            names = ", ".join(sorted(path.name for path in of_others))
            runner.logger.warning(
                f"{folder}: contains checkpoints of an earlier run ({names}), and this "
                "run overwrites files with the same names; to continue the earlier run, use "
                "--resume --cfg-options load_from=FILE"
            )

    def _step(self, runner) -> int:
        """Return the number in the name of a checkpoint that is saved now."""
        return runner.epoch if self.by_epoch else runner.iter

    def after_val_epoch(self, runner, metrics=None) -> None:
        if not hasattr(self, "file_backend"):  # `runner.val()` without a training
            return
        for name in getattr(self, "key_indicators", ()):
            score = (metrics or {}).get(name)
            is_nan = score != score
            if is_nan and name not in self._without_score:
                self._without_score.add(name)
                hint = "is NaN and cannot be the best; validate images with this class"
                runner.logger.warning(f"default_hooks.checkpoint.save_best: {name} {hint}")
        before = self._best(runner)
        super().after_val_epoch(runner, metrics)
        step = self._step(runner)
        if self.last_ckpt is None:
            self._remove_older(runner, step)
        elif self._best(runner) == before and Path(self.last_ckpt).name == self._name(step):
            # mmengine does this only for a new best.
            meta = {"epoch": runner.epoch, "iter": runner.iter}
            self._save_checkpoint_with_step(runner, step, meta)

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        """Save, write `last_checkpoint`, and then remove older files, all of them atomically."""
        if self._run is None:
            super()._save_checkpoint_with_step(runner, step, meta)
            return
        if self.max_keep_ckpts > 0 and step not in self.keep_ckpt_ids:
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info("keep_ckpt_ids", list(self.keep_ckpt_ids))
        self.last_ckpt = str(Path(self.out_dir, self._name(step)))
        runner.message_hub.update_info("last_ckpt", self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            self._name(step),
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
        )
        on_rank_zero(lambda: write_text(self.last_ckpt, Path(runner.work_dir, LAST)))
        self._remove_older(runner, step)

    def _name(self, step: int) -> str:
        return self.filename_tmpl.format(step)

    def _best(self, runner) -> list[Path]:
        info = runner.message_hub.runtime_info
        return [Path(path) for key, path in info.items() if key.startswith("best_ckpt") and path]

    def _remove_older(self, runner, step: int) -> None:
        """Remove what the checkpoint of `step` replaces, if both are of this run."""
        if self._run is None or not dist.is_main_process():
            return
        folder = Path(self.out_dir)
        names = [path.name for path in folder.glob("*") if path.is_file()]
        kept = getattr(self, "keep_ckpt_ids", ())  # only with `max_keep_ckpts`
        best = [path.name for path in self._best(runner)]  # a path can be spelled in several ways
        replaced = replaced_checkpoints(names, self.filename_tmpl, step, list(kept), best)
        for old, new in replaced.items():
            if origin_of(folder / new).run == origin_of(folder / old).run == self._run:
                runner.logger.info(f"removing {folder / old}: {new} replaces it")
                (folder / old).unlink(missing_ok=True)


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
        what = f"{signal.Signals(number).name}: stopped after iteration {runner.iter + 1}"
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        # The first hook that saves the optimizer, else the first one.
        hook = max(hooks, key=lambda hook: hook.save_optimizer, default=None)
        if hook is None:
            raise RunError(f"{what} without saving; add default_hooks.checkpoint to the config")
        if Path(hook.last_ckpt or "").name != hook.filename_tmpl.format(runner.iter + 1):
            save_checkpoint(hook, runner)
        runner.logger.info(f"{what} and saved {hook.last_ckpt}; --resume continues from there")
        raise SystemExit(0)
