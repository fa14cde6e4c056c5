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
- The work directory is locked during training.
- `levers` makes it fast; the first lines of a log have the levers that a run uses.
"""

import contextlib
import copy
import os
import time
import uuid
from pathlib import Path
from typing import Any

from mmengine.hooks import EMAHook, Hook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.files import LAST
from mmseg_ext.checkpoint.safe_loading import safe_loading, unwrap_model
from mmseg_ext.durable.checkpoint_hooks import StopOnSignalHook, name_own_files
from mmseg_ext.durable.levers import LeverHook, compile_loss
from mmseg_ext.durable.optimizer_groups import merge_groups, select_fused_steps, single_wrappers
from mmseg_ext.durable.optimizer_state import (
    fit_optimizer_state,
    report_replaced_settings,
    stored_settings,
)
from mmseg_ext.durable.randomness import (
    PositionedSampler,
    batch_size,
    continue_samples,
    isolate_loader,
    positioned_sampler,
    samples_meta,
    with_sample_seeds,
)
from mmseg_ext.durable.run_state import (
    PlainCheckpointHook,
    ProcessStateHook,
    RepeatValidationHook,
    ShortHistoryHook,
)
from mmseg_ext.durable.without_waiting import defer_losses, pin_samples
from mmseg_ext.durable.work_dir import (
    checkpoint_folder,
    lock_work_dir,
    newest_complete,
    on_rank_zero,
    require_resumable,
)
from mmseg_ext.errors import RESUME_HINT, CheckpointError, NotWritten
from mmseg_ext.terminal import quiet_terminal
from mmseg_ext.upstream import resume_from, resumes, searches_checkpoint, shut_down_workers


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
        checkpoint_hook = (kwargs.get("default_hooks") or {}).get("checkpoint")
        if isinstance(checkpoint_hook, dict):
            self.cfg.setdefault("default_hooks", {"checkpoint": checkpoint_hook})
        self._process_state = ProcessStateHook()
        self.register_hook(self._process_state)
        self.register_hook(RepeatValidationHook())
        self.register_hook(PlainCheckpointHook())
        self.register_hook(ShortHistoryHook())
        self.register_hook(LeverHook())

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
        """Register the default hooks; None registers none, also if mmengine has no such name."""
        given = {}
        for name, hook in (hooks or {}).items():
            given[name] = Hook() if hook is None else hook  # `Hook` does nothing
        super().register_default_hooks(given)
        defer_losses(self)

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args, **kwargs) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        settings = with_sample_seeds(copy.deepcopy(dataloader))
        loader = Runner.build_dataloader(settings, *args, **kwargs)
        sampler = positioned_sampler(loader)
        if isinstance(sampler, PositionedSampler):
            sampler.batch_samples = len(loader) * batch_size(loader)
        return pin_samples(isolate_loader(loader))

    def build_optim_wrapper(self, *args, **kwargs) -> OptimWrapper | OptimWrapperDict:
        wrapper = super().build_optim_wrapper(*args, **kwargs)
        for one in single_wrappers(wrapper):  # before schedules, which replace `step`, too
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
        """Lock the folders of the run and of its checkpoints until the end of `stack`."""
        folders = {}  # only one without `out_dir`
        for folder in (self.work_dir, checkpoint_folder(self.cfg)):
            folders[os.path.realpath(folder)] = folder
        for folder in folders.values():
            Path(folder).mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_work_dir(str(folder)))

    def _maybe_compile(self, target: str) -> None:
        if hasattr(unwrap_model(self.model), "loss"):
            compile_loss(self)
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
        wrapper = self.optim_wrapper  # a test has settings here
        if isinstance(wrapper, OptimWrapper) and not resumes(self):  # else it continues as it began
            for one in single_wrappers(wrapper):
                select_fused_steps(one.optimizer, self.model)

    def resume(self, filename: str, *args, **kwargs) -> None:
        if self.optim_wrapper:  # settings in `val` and `test`
            self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.param_schedulers:
            self.param_schedulers = self.build_param_scheduler(self.param_schedulers)
        configured = stored_settings(self.optim_wrapper, self.param_schedulers)
        resume_from(self, filename)  # also if a hook calls this
        super().resume(filename, *args, **kwargs)
        name_own_files(self)
        if self.iter >= self.max_iters:
            self.logger.info(f"{filename}: is the end of the training, so nothing is left to train")
        report_replaced_settings(self, configured, filename)

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        """Load a checkpoint, and its state if the run resumes."""
        with self._safe_loading(entire_model=resumes(self) or None):
            content = super().load_checkpoint(filename, *args, **kwargs)
        if resumes(self):
            self._continue(content, filename)
        return content

    def _continue(self, content: dict, filename: str) -> None:
        """Continue the run of a checkpoint; warn if it will differ from an uninterrupted one."""
        require_resumable(content, filename)
        meta = content["meta"]
        if "optimizer" in content:
            wrapper: Any = self.optim_wrapper  # built before a run resumes
            fit_optimizer_state(wrapper, content["optimizer"], filename)
        self.run_id = meta.get("run") or self.run_id
        saved_at = meta.get("saved_at")
        self._saved_at = saved_at if isinstance(saved_at, float) else 0.0
        for key in {"optimizer", "param_schedulers"} - content.keys():
            self.logger.warning(f"{filename}: contains no {key}, which begins anew")
        averages = any(isinstance(hook, EMAHook) for hook in self.hooks)
        if "ema_state_dict" in content and not averages:
            self.logger.warning(
                f"{filename}: the weights are averages by EMAHook, which is not in the config; "
                "the training continues from the averages"
            )
        by_epochs = isinstance(self.train_loop, EpochBasedTrainLoop)
        continue_samples(self.train_dataloader, meta, by_epochs, filename, self.logger)
        self._process_state.load_state_dict(self, content.get("processes"), filename)

    def save_checkpoint(
        self, out_dir: str, filename: str, *args, meta: dict | None = None, **settings
    ) -> None:
        """Write a checkpoint atomically; every process must call this.

        Raises:
            CheckpointError: in every process, if rank 0 cannot write the file.
        """
        self.call_hook("before_state_dict")  # in every process, unlike `before_save_checkpoint`
        meta = self._complete_meta(meta or {})

        def write() -> None:
            try:
                with atomic_write(Path(out_dir, filename)) as part:
                    save = super(DurableRunner, self).save_checkpoint
                    save(str(part.parent), part.name, *args, meta=meta, **settings)
            except NotWritten as error:
                raise CheckpointError(f"{error}; {RESUME_HINT}") from error

        on_rank_zero(write)

    def _complete_meta(self, given: dict) -> dict:
        """Return the `meta` of a checkpoint that is saved now: mmengine's `given` one, and ours."""
        # The newest one has the highest time, also after the clock was set back.
        self._saved_at = max(time.time(), self._saved_at + 1e-3)
        by_epochs = isinstance(self.train_loop, EpochBasedTrainLoop)
        return {
            **given,
            **self._terms,
            **samples_meta(self.train_dataloader, by_epochs),
            "run": self.run_id,
            "saved_at": self._saved_at,
            "processes": self._process_state.state_dict(self),  # becomes an entry of its own
        }

    def test(self) -> dict[str, float]:
        dump_config_of_test(self)
        try:
            with self._safe_loading(entire_model=True):
                return super().test()
        finally:
            shut_down_workers(self)


def dump_config_of_test(runner: Runner) -> None:
    """Write the config of a test to its work directory, unless the training's is there.

    Later commands need that one: a test can have other options, and with `--tta` another model.
    """
    has_config = Path(runner.work_dir, Path(runner.cfg.filename or "").name).is_file()
    if not has_config or not Path(runner.work_dir, LAST).is_file():
        Runner.dump_config(runner)
