"""A Runner that resumes bit-exactly after being killed.

Differences from `mmengine.runner.Runner` (0.10.12):

- Checkpoints contain only tensors and plain containers, are written atomically, and are read
  without unpickling.
- Checkpoints store the random state of every rank, the sampler's seed, and the gradients of an
  unfinished accumulation.
- Sample order and augmentation depend only on the seed and the position in the run.
- Validation does not change the random state of training. A resumed run repeats a validation that
  was cut short, or that ended after its iteration or epoch was saved.
- In several processes, validation uses the running statistics of rank 0, which are saved.
- `--resume` continues from the newest complete checkpoint of the same run.
- The history of logged values has the length that the log processor reads.
- Logged losses stay on a GPU until something reads them.
- The work directory is locked during training.
- `compile` compiles a model's `loss`, instead of `train_step` with the optimizer.
- An optimizer's step computes parameter groups with equal settings together. On a GPU, new runs
  take torch's fused steps if the config sets neither `fused` nor `foreach`.
"""

import contextlib
import copy
import itertools
import os
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import EMAHook, Hook, RuntimeInfoHook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, LogProcessor, Runner
from torch import nn
from torch.utils.data import DataLoader

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.checkpoint.safe_loading import safe_loading, unwrap_model
from mmseg_ext.durable import randomness
from mmseg_ext.durable.checkpoint_hooks import StopOnSignalHook, name_own_files
from mmseg_ext.durable.optimizer_groups import merge_groups, select_fused_steps
from mmseg_ext.durable.run_state import ProcessStateHook, fit_optimizer_state
from mmseg_ext.durable.without_waiting import WaitingInfoHook, pin_samples
from mmseg_ext.durable.work_dir import (
    checkpoint_folder,
    lock_work_dir,
    newest_complete,
    on_rank_zero,
    require_resumable,
)
from mmseg_ext.errors import RESUME_HINT, CheckpointError, NotWritten
from mmseg_ext.terminal import quiet_terminal
from mmseg_ext.upstream import (
    resume_from,
    resumes,
    searches_checkpoint,
    shut_down_workers,
    validates_at,
)

# What schedules count, and not settings.
_STEPS = ("last_step", "best", "num_bad_epochs", "cooldown_counter")


class PlainCheckpointHook(Hook):
    """Makes all data of a checkpoint plain, after other hooks have added theirs."""

    priority = "LOWEST"

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint["processes"] = checkpoint["meta"].pop("processes")
        dropped: list[str] = []
        checkpoint.update({k: to_plain(v, k, dropped) for k, v in checkpoint.items()})
        info = checkpoint["message_hub"]["runtime_info"]
        for key, path in info.items():
            if key.startswith(("best_ckpt", "last_ckpt")) and path is not None:
                info[key] = Path(path).name  # a copied folder must not refer to the original
        if dropped:
            runner.logger.warning(f"checkpoint: left out, because not plain data: {dropped}")


class RepeatValidationHook(Hook):
    """Runs the validation of the iteration or epoch at which a resumed checkpoint was saved."""

    priority = "LOWEST"  # other hooks start before

    def before_train(self, runner) -> None:  # epochs have no later point if all are done
        loop, hub = runner.train_loop, runner.message_hub
        if runner.iter > 0:  # as between the iterations of a loop
            hub.update_info("iter", runner.iter - 1)
        if isinstance(loop, EpochBasedTrainLoop):
            unit, step, last = "epoch", runner.epoch, loop.max_epochs
            iteration = step * len(loop.dataloader)
        elif isinstance(loop, IterBasedTrainLoop):
            unit, step, last = "iteration", runner.iter, loop.max_iters
            iteration = step
        else:
            return
        done = hub.runtime_info.get("last_validation", -1) >= iteration
        if runner.val_loop is None or step == 0 or done or not validates_at(loop, step, last):
            return
        runner.logger.info(f"repeating the validation of {unit} {step}")
        if unit == "epoch":
            hub.update_info("epoch", runner.epoch - 1)
        runner.val_loop.run()


class ShortHistoryHook(Hook):
    """Limits the history of training and validation to what the log processor reads.

    mmengine appends each logged value to an array of the complete history, which is also in each
    checkpoint, so the cost of an iteration would grow with the run. The complete history stays if a
    window of the log processor is 'epoch' or 'global', or with another class of log processors.
    """

    priority = "HIGHEST"  # before the iteration's values are added

    _length: int | None = None

    def before_train(self, runner) -> None:
        processor = runner.log_processor
        sizes = [processor.window_size, *(c.get("window_size") for c in processor.custom_cfg)]
        if type(processor) is LogProcessor and {type(size) for size in sizes} == {int}:
            # At the end of a validation its times are averaged.
            batches = 0 if runner.val_loop is None else len(runner.val_dataloader)
            self._length = max(*sizes, batches)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if self._length is not None:
            for history in runner.message_hub.log_scalars.values():
                history.max_length = self._length  # used when the next value is added


@RUNNERS.register_module()
class DurableRunner(Runner):
    """The Runner of `runner_type = 'DurableRunner'`: see the module's documentation.

    `min_backbone_share` in the config (0 to 1, by default 0.9) is the share of a backbone's values
    that `load_from` and `init_cfg=dict(type='Pretrained')` must fill.
    """

    def __init__(self, *args, **kwargs):
        self.run_id = uuid.uuid4().hex  # a resumed run continues with the checkpoint's
        self._saved_at = 0.0  # the time in the newest checkpoint of the run
        self._terms: dict[str, str] = {}  # of the weights from which the run starts
        super().__init__(*args, **kwargs)
        # Built by keywords, as in mmengine's tutorials, a Runner has an empty config.
        self.cfg.setdefault("work_dir", self.work_dir)
        if isinstance(hook := (kwargs.get("default_hooks") or {}).get("checkpoint"), dict):
            self.cfg.setdefault("default_hooks", {"checkpoint": hook})
        self._process_state = ProcessStateHook()
        for hook in (self._process_state, RepeatValidationHook(), PlainCheckpointHook()):
            self.register_hook(hook)
        self.register_hook(ShortHistoryHook())

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        quiet_terminal(logger)
        return logger

    def set_randomness(self, *args, **kwargs) -> None:
        super().set_randomness(*args, **kwargs)
        if self.deterministic:  # CUDA's matrix products need this before the first one runs
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            # torch 2.10 and newer: compiled kernels that round differently are not tried out.
            os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")

    def register_default_hooks(self, hooks: dict | None = None) -> None:
        """Register the default hooks; None stands for none, also if mmengine has no such name."""
        given = (hooks or {}).items()
        super().register_default_hooks({k: Hook() if hook is None else hook for k, hook in given})
        for i, hook in enumerate(self.hooks):
            if type(hook) is RuntimeInfoHook:
                self.hooks[i] = WaitingInfoHook()

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args, **kwargs) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        settings = randomness.with_sample_seeds(copy.deepcopy(dataloader))
        loader = Runner.build_dataloader(settings, *args, **kwargs)
        sampler = randomness.positioned_sampler(loader)
        if isinstance(sampler, randomness.PositionedSampler):
            sampler.batch_samples = len(loader) * _batch_size(loader)
        return pin_samples(randomness.isolate_loader(loader))

    def build_optim_wrapper(self, *args, **kwargs) -> OptimWrapper | OptimWrapperDict:
        wrapper = super().build_optim_wrapper(*args, **kwargs)
        for one in _single_wrappers(wrapper):
            merge_groups(one.optimizer)
        return wrapper

    def dump_config(self) -> None:
        """Do nothing: mmengine's constructor calls this, and the folder may be in use."""

    def train(self) -> nn.Module:
        with contextlib.ExitStack() as stack:
            for hook in self.hooks:
                if isinstance(hook, StopOnSignalHook):
                    hook.before_train(self)  # loading can take minutes
                    stack.callback(hook.after_train, self)  # also after an error
            on_rank_zero(lambda: self._lock(stack))
            Runner.dump_config(self)
            stack.callback(shut_down_workers, self)
            stack.enter_context(self._safe_loading())  # of `init_cfg`, and of hooks
            self._find_checkpoint()
            if resumes(self):  # the checkpoint has all weights, and the first ones may be gone
                module: Any
                for module in self.model.modules():
                    if "Pretrained" in str(getattr(module, "init_cfg", None)):
                        module.init_cfg = None
            return super().train()

    def _lock(self, stack: contextlib.ExitStack) -> None:
        both = self.work_dir, checkpoint_folder(self.cfg)  # the same one without `out_dir`
        for folder in {os.path.realpath(path): path for path in both}.values():
            Path(folder).mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_work_dir(str(folder)))

    def _maybe_compile(self, target: str) -> None:
        """Compile a model's `loss`; `train_step` would compile again in eight iterations."""
        model: Any = unwrap_model(self.model)
        settings = self.cfg.get("compile")
        if settings and self.deterministic:
            self.logger.warning(
                "compile: torch may compile other kernels after a restart, so a resumed run can "
                "differ in spite of randomness.deterministic=True"
            )
        settings = {} if settings is True else settings
        if isinstance(settings, dict) and "target" in settings:
            return  # `AccelerationHook` compiles parts of the model
        if isinstance(settings, dict) and hasattr(model, "loss"):
            model.loss = torch.compile(model.loss, **settings)
            self.logger.info("compile: the first iterations are slow")
        else:
            super()._maybe_compile(target)

    def _safe_loading(self, entire_model: bool | None = None) -> contextlib.AbstractContextManager:
        return safe_loading(self.cfg.get("min_backbone_share"), entire_model, self._terms)

    def _find_checkpoint(self) -> None:
        """Choose the newest complete checkpoint if the run has to find one."""
        if searches_checkpoint(self):
            path, problems = on_rank_zero(lambda: newest_complete(self.cfg))
            for problem in problems:
                self.logger.warning(f"{problem}; trying the checkpoint before it")
            resume_from(self, None if path is None else str(path))

    def load_or_resume(self) -> None:
        self._find_checkpoint()
        super().load_or_resume()
        if not resumes(self) and isinstance(self.optim_wrapper, OptimWrapper):  # a new training
            for one in _single_wrappers(self.optim_wrapper):
                select_fused_steps(one.optimizer, self.model)

    def resume(self, filename: str, *args, **kwargs) -> None:
        if self.optim_wrapper:  # settings in `val` and `test`
            self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.param_schedulers:
            self.param_schedulers = self.build_param_scheduler(self.param_schedulers)
        configured = self._settings_of_checkpoints()
        resume_from(self, filename)  # also if a hook calls this
        super().resume(filename, *args, **kwargs)
        name_own_files(self)
        if self.iter >= self.max_iters:
            self.logger.info(f"{filename}: is the end of the training, so nothing is left to train")
        changed = [
            f"{name} is {' and '.join(sorted(kept))}, not {' and '.join(sorted(configured[name]))}"
            for name, kept in self._settings_of_checkpoints().items()
            if kept != configured.get(name, kept)
        ]
        if changed:
            self.logger.warning(
                f"{filename}: the checkpoint overrides settings of the config ({'; '.join(changed)}"
                "); to use the config's, start a new run from the weights (load_from)"
            )

    def _settings_of_checkpoints(self) -> dict[str, set[str]]:
        """Return the values of what a checkpoint replaces: of optimizers and schedules."""
        wrapper: Any = self.optim_wrapper
        several: Any = [wrapper.param_groups, self.param_schedulers or []]
        # Several optimizers have dictionaries of lists.
        several = [[*itertools.chain(*s.values())] if isinstance(s, dict) else s for s in several]
        found: dict[str, set[str]] = defaultdict(set)
        for group in several[0]:
            # Schedules change these values; the initial ones stay.
            scheduled = {
                key.removeprefix("initial_") for key in group if key.startswith("initial_")
            }
            scheduled |= {"betas"} if "momentum" in scheduled else set()
            for key, value in group.items():
                if key not in {"params", "param_names", "fused"} | scheduled:
                    name = key.removeprefix("initial_")
                    found[name].add(str(float(value) if isinstance(value, int) else value))
        for schedule in several[1]:
            for key, value in schedule.state_dict().items():
                if isinstance(value, float | int) and key not in _STEPS and not key.startswith("_"):
                    found[f"{type(schedule).__name__}.{key}"].add(str(float(value)))
        return found

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        """Load a checkpoint, and its state if the run resumes."""
        with self._safe_loading(entire_model=resumes(self) or None):
            content = super().load_checkpoint(filename, *args, **kwargs)
        if resumes(self):
            require_resumable(content, filename)
            wrapper: Any = self.optim_wrapper  # built before a run resumes
            if "optimizer" in content:
                fit_optimizer_state(wrapper, content["optimizer"], filename)
            self.run_id = content["meta"].get("run") or self.run_id
            saved_at = content["meta"].get("saved_at")
            self._saved_at = saved_at if isinstance(saved_at, float) else 0.0
            for key in {"optimizer", "param_schedulers"} - content.keys():
                self.logger.warning(f"{filename}: contains no {key}, which begins anew")
            averaged = any(isinstance(hook, EMAHook) for hook in self.hooks)
            if "ema_state_dict" in content and not averaged:
                self.logger.warning(
                    f"{filename}: the weights are averages by EMAHook, which is not in the config; "
                    "the training continues from the averages"
                )
            self._continue_samples(content["meta"], filename)
            self._process_state.load_state_dict(self, content.get("processes"), filename)
        return content

    def _continue_samples(self, meta: dict, filename: str) -> None:
        """Continue the checkpoint's samples; warn if they differ, or if an epoch starts again."""
        loader = self.train_dataloader
        sampler: Any = randomness.positioned_sampler(loader)
        if sampler is None:
            self.logger.warning(
                "train_dataloader.sampler: samples and augmentations of the resumed run differ; "
                "use InfiniteSampler, or DefaultSampler with shuffle=True, for an exact resume"
            )
        else:
            sampler.seed = meta.get("sampler_seed", sampler.seed)
            saved, own = meta.get("samples"), _samples(sampler, loader)
            if saved not in (None, own):
                self.logger.warning(
                    f"{filename}: was saved with {saved}, and the config has {own}; the order of "
                    "the images changes"
                )
        if not isinstance(self.train_loop, EpochBasedTrainLoop):
            return
        first = meta["epoch"] * len(loader)
        done = meta["iter"] - first
        if (
            sampler is not None
            and meta.get("epoch_length") == len(loader)
            and 0 <= done <= len(loader)
        ):
            sampler.start = done * _batch_size(loader)
        elif done:  # the loop would exceed its last iteration
            meta["iter"] = first
            self.logger.warning(
                f"{filename}: cannot continue within an epoch with this sampler or number of "
                f"images; epoch {meta['epoch'] + 1} starts again, at iteration {first}"
            )

    def save_checkpoint(
        self, out_dir: str, filename: str, *args, meta: dict | None = None, **settings
    ) -> None:
        """Write a checkpoint atomically; every process must call this.

        Raises:
            CheckpointError: in every process, if rank 0 cannot write the file.
        """
        self.call_hook("before_state_dict")  # in every process, unlike `before_save_checkpoint`
        loader = self.train_dataloader
        sampler = randomness.positioned_sampler(loader)
        # The newest one has the highest time, also after the clock was set back.
        self._saved_at = max(time.time(), self._saved_at + 1e-3)
        by_epochs = isinstance(self.train_loop, EpochBasedTrainLoop)
        meta = {
            **(meta or {}),
            **self._terms,
            **({} if sampler is None else {"sampler_seed": sampler.seed}),
            **({} if sampler is None else {"samples": _samples(sampler, loader)}),
            **({"epoch_length": len(loader)} if by_epochs else {}),
            "run": self.run_id,
            "saved_at": self._saved_at,
            "processes": self._process_state.state_dict(self),  # becomes an entry of its own
        }

        def write() -> None:
            try:
                with atomic_write(Path(out_dir, filename)) as part:
                    save = super(DurableRunner, self).save_checkpoint
                    save(str(part.parent), part.name, *args, meta=meta, **settings)
            except NotWritten as error:
                raise CheckpointError(f"{error}; {RESUME_HINT}") from error

        on_rank_zero(write)

    def test(self) -> dict[str, float]:
        Runner.dump_config(self)
        try:
            with self._safe_loading(entire_model=True):
                return super().test()
        finally:
            shut_down_workers(self)


def _single_wrappers(wrapper: OptimWrapper | OptimWrapperDict) -> list[OptimWrapper]:
    return [*wrapper.values()] if isinstance(wrapper, OptimWrapperDict) else [wrapper]


def _samples(sampler: Any, loader: DataLoader) -> str:
    return f"{len(sampler.dataset)} images in batches of {sampler.world_size * _batch_size(loader)}"


def _batch_size(loader: DataLoader) -> int:
    return getattr(loader.batch_sampler, "batch_size", 1)
