"""mmengine's Runner for runs that can be killed at any moment and go on as if nothing had been.

What it adds to `mmengine.runner.Runner` (0.10.12), each because a resumed run differs without it:

- Checkpoints hold tensors and plain containers alone, are written beside and renamed, and are read
  without running code.
- They hold the random streams of every process, the sampler's seed, and the gradients of an
  unfinished accumulation; `resume` puts these back before the first iteration.
- A resumed run starts from the newest of its own checkpoints that reads whole.
- Order and augmentation of training samples follow from the seed and the position in the run.
- Validation leaves the random streams of training where they were. One that the end of the run cut
  short, or that ended after its iteration was saved, is run by the resumed run.
- In several processes validation takes the running statistics of the first, which are saved.
- A run knows its own checkpoints, and holds its work directory while it trains.
"""

import copy
import errno
import time
import uuid
from pathlib import Path

import mmengine
import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.utils import get_git_hash
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from mmseg_ext.checkpoint.load_report import require_coverage
from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.checkpoint.resuming import newest_whole, require_resumable
from mmseg_ext.checkpoint.safe_loading import SafeLoading
from mmseg_ext.checkpoint.writing import write_checkpoint
from mmseg_ext.engine.checkpoint_hook import checkpoint_folder
from mmseg_ext.engine.deterministic import make_deterministic
from mmseg_ext.engine.quiet_start import quiet_terminal
from mmseg_ext.engine.random_state import random_state, set_random_state
from mmseg_ext.engine.sample_seeds import isolate, positioned_sampler, with_sample_seeds
from mmseg_ext.engine.sharding import (
    collect,
    local_gradient,
    whole_optimizer_states,
    with_local_gradient,
)
from mmseg_ext.engine.work_dir_lock import WorkDirLock
from mmseg_ext.errors import (
    SAFE_UNTIL_NOW,
    CheckpointError,
    CheckpointNotWritten,
    LaunchError,
    NotWritten,
)
from mmseg_ext.upstream import built_dataloaders, resume_from, searches_checkpoint, validates_at


class _TrainingState(Hook):
    """The state of training around a validation, and the state of a checkpoint before the first
    iteration."""

    priority = "VERY_HIGH"

    def __init__(self):
        self._random: dict | None = None
        self._statistics: list[torch.Tensor] = []

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        runner.restore_process_state()

    def before_val(self, runner) -> None:
        self._random = random_state()

    def before_val_iter(self, runner, batch_idx, data_batch=None) -> None:
        """The first process's statistics, after an average of the weights has taken its place."""
        if batch_idx == 0 and runner.world_size > 1 and self._random is not None:
            self._statistics = [buffer.clone() for buffer in runner.model.buffers()]
            for buffer in runner.model.buffers():
                dist.broadcast(buffer)

    def after_val_epoch(self, runner, metrics=None) -> None:  # before checkpoints are saved
        for buffer, own in zip(runner.model.buffers(), self._statistics, strict=False):
            buffer.copy_(own)
        self._statistics = []
        if self._random is not None:
            set_random_state(self._random)
            runner.message_hub.update_info("validated_iter", runner.iter)

    def after_val(self, runner) -> None:
        if self._random is not None:
            set_random_state(self._random)
            self._random = None


class _OverdueValidation(Hook):
    """Run the validation of the iteration that a resumed checkpoint was saved at."""

    priority = "VERY_LOW"  # when every hook is ready

    def before_train_epoch(self, runner) -> None:
        loop, done = runner.train_loop, runner.message_hub.runtime_info.get("validated_iter")
        if runner.val_loop is None or runner.iter == 0 or done == runner.iter:
            return
        if isinstance(loop, IterBasedTrainLoop) and validates_at(loop, runner.iter):
            runner.logger.info(f"validation of iteration {runner.iter}, which the run had ended in")
            runner.restore_process_state()
            runner.val_loop.run()


def _optimizers(wrapper: OptimWrapper | OptimWrapperDict) -> list[Optimizer]:
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return [w.optimizer for w in wrappers]


@RUNNERS.register_module()
class DurableRunner(Runner):
    """A Runner whose training survives: `runner_type = 'DurableRunner'` in a config.

    `min_backbone_share` in the config (0 to 1, 0.9 where absent) is how much of a backbone
    `load_from` and `init_cfg=dict(type='Pretrained')` must fill.
    """

    def __init__(self, *args, **kwargs):
        self._loaded: dict = {}
        self._resuming = False
        self._process_state: dict | None = None
        self.run_id = uuid.uuid4().hex  # a resumed run takes the checkpoint's
        super().__init__(*args, **kwargs)
        self.register_hook(_TrainingState())
        self.register_hook(_OverdueValidation())

    # ------------------------------------------------------------------ building

    def build_logger(self, *args, **kwargs) -> MMLogger:
        """As mmengine's; the terminal is spared its long start, the file gets all."""
        logger = super().build_logger(*args, **kwargs)
        quiet_terminal(logger)
        return logger

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict, seed: int | None = None, diff_rank_seed: bool = False
    ) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        settings = with_sample_seeds(copy.deepcopy(dataloader))
        return isolate(Runner.build_dataloader(settings, seed, diff_rank_seed))

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        model = super().build_model(model)
        if self.deterministic:
            make_deterministic(model)
        return model

    def build_optim_wrapper(self, optim_wrapper):
        optim_wrapper = super().build_optim_wrapper(optim_wrapper)
        for optimizer in _optimizers(optim_wrapper):
            whole_optimizer_states(optimizer)
        return optim_wrapper

    def _init_model_weights(self) -> None:
        with SafeLoading(self.cfg.get("min_backbone_share")):
            super()._init_model_weights()

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        with SafeLoading(self.cfg.get("min_backbone_share")):
            self._loaded = super().load_checkpoint(filename, *args, **kwargs)
        if self._resuming:
            require_resumable(self._loaded, filename)
        return self._loaded

    # ------------------------------------------------------------------ running

    def train(self) -> nn.Module:
        lock = self._lock_work_dir()
        try:
            return super().train()
        finally:
            self._release_workers()
            if lock is not None:
                lock.release()

    def _lock_work_dir(self) -> WorkDirLock | None:
        """The first process's.

        Raises:
            LaunchError: in every process, where another training holds it.
        """
        lock, failure = None, [None]
        if dist.is_main_process():
            try:
                lock = WorkDirLock(self.work_dir)
            except LaunchError as error:
                failure = [str(error)]
        dist.broadcast_object_list(failure)
        if failure[0] is not None:
            raise LaunchError(failure[0])
        return lock

    def test(self) -> dict[str, float]:
        try:
            with require_coverage(whole=True):
                return super().test()
        finally:
            self._release_workers()

    def _release_workers(self) -> None:
        """End the persistent workers of the loaders, which start anew if they are asked again.

        Left to the garbage collector, which frees a run's parts in any order, each worker is waited
        for until torch gives up on it, five seconds.
        """
        for loader in built_dataloaders(self):
            iterator = getattr(loader, "_iterator", None)
            if iterator is not None:
                iterator._shutdown_workers()
                loader._iterator = None

    # ------------------------------------------------------------------ saving

    def _own_state(self) -> dict:
        """What of the state is this process's own."""
        return {
            "random": random_state(),
            "gradients": {
                name: local_gradient(parameter).cpu()
                for name, parameter in self._bare_model.named_parameters()
                if parameter.grad is not None  # none after a step: an accumulation is under way
            },
        }

    @property
    def _bare_model(self) -> nn.Module:
        return self.model.module if is_model_wrapper(self.model) else self.model

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        file_client_args: dict | None = None,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        meta: dict | None = None,
        by_epoch: bool = True,
        backend_args: dict | None = None,
    ) -> None:
        """Write `out_dir/filename` whole or not at all; every process must call it.

        Raises:
            CheckpointNotWritten: in every process, where the first cannot write the file.
            ValueError: for a storage backend: a folder of the file system is needed.
        """
        if file_client_args is not None or backend_args is not None:
            raise ValueError("checkpoints are written to a folder; leave out backend_args")
        own = dist.all_gather_object(self._own_state()) if save_optimizer else []
        failure = [None]
        if not dist.is_main_process():  # what the first process writes may take every one
            self._bare_model.state_dict()
            for optimizer in _optimizers(self.optim_wrapper) if save_optimizer else ():
                collect(optimizer)
        else:
            content = self._content(
                save_optimizer, save_param_scheduler, dict(meta or {}), by_epoch
            )
            content["processes"] = own
            self.call_hook("before_save_checkpoint", checkpoint=content)
            dropped: list[str] = []
            content = to_plain(content, "", dropped)
            if dropped:
                self.logger.warning(f"not in the checkpoint, having no plain form: {dropped}")
            bad = [k for k, v in content["state_dict"].items() if not v.isfinite().all()]
            try:
                if bad:
                    raise NotWritten(errno.EINVAL, f"{bad[0]} is not finite", filename)
                write_checkpoint(content, Path(out_dir, filename))
            except NotWritten as error:
                failure = [f"{error}; {SAFE_UNTIL_NOW}"]
        dist.broadcast_object_list(failure)
        if failure[0] is not None:
            raise CheckpointNotWritten(failure[0])

    def _content(self, optimizer: bool, scheduler: bool, meta: dict, by_epoch: bool) -> dict:
        """mmengine's checkpoint: the same keys with the same meaning."""
        meta.setdefault("epoch", self.epoch + 1 if by_epoch else self.epoch)
        meta.setdefault("iter", self.iter if by_epoch else self.iter + 1)
        meta.update(
            cfg=self.cfg.pretty_text,
            seed=self.seed,
            experiment_name=self.experiment_name,
            time=time.strftime("%Y%m%d_%H%M%S", time.localtime()),
            mmengine_version=mmengine.__version__ + get_git_hash(),
        )
        if hasattr(self.train_dataloader.dataset, "metainfo"):
            meta["dataset_meta"] = self.train_dataloader.dataset.metainfo
        sampler = positioned_sampler(self.train_dataloader)
        if sampler is not None:
            meta["sampler_seed"] = sampler.seed
        meta["run"] = self.run_id
        hub = self.message_hub.state_dict()
        for key, value in hub["runtime_info"].items():
            if key.startswith("best_ckpt") and value:
                hub["runtime_info"][key] = Path(value).name
        content = {
            "meta": meta,
            "state_dict": self._bare_model.state_dict(),
            "message_hub": hub,
        }
        if optimizer:
            content["optimizer"] = self.optim_wrapper.state_dict()
        if scheduler and self.param_schedulers is not None:
            schedulers = self.param_schedulers
            if isinstance(schedulers, dict):
                states = {k: [s.state_dict() for s in v] for k, v in schedulers.items()}
            else:
                states = [s.state_dict() for s in schedulers]
            content["param_schedulers"] = states
        # Hooks may exchange entries of this mapping (EMA does): the model must not see that.
        content["state_dict"] = copy.copy(content["state_dict"])
        return content

    # ------------------------------------------------------------------ resuming

    def load_or_resume(self) -> None:
        if searches_checkpoint(self):
            resume_from(self, self._newest_whole())
        super().load_or_resume()

    def _newest_whole(self) -> str | None:
        """The first process looks, all take what it found."""
        found: list = [None, [], None]
        if dist.is_main_process():
            try:
                path, problems = newest_whole(checkpoint_folder(self.cfg))
                found = [str(path) if path else None, problems, None]
            except CheckpointError as error:
                found[2] = str(error)
        dist.broadcast_object_list(found)
        path, problems, error = found
        if error is not None:
            raise CheckpointError(error)
        for problem in problems:
            self.logger.warning(f"{problem}; taking the checkpoint before it")
        return path

    def resume(self, filename: str, *args, **kwargs) -> None:
        self._resuming = True
        with require_coverage(whole=True):
            super().resume(filename, *args, **kwargs)
        self._resuming = False
        self.run_id = self._loaded["meta"].get("run") or self.run_id
        seed = self._loaded["meta"].get("sampler_seed")
        sampler = positioned_sampler(self.train_dataloader)
        if seed is not None and sampler is not None:
            sampler.seed = seed
        own = self._loaded.get("processes") or []
        if len(own) == self.world_size:
            self._process_state = own[self.rank]
        else:
            self.logger.warning(
                f"{filename} holds the random streams of {len(own)} processes and this run has "
                f"{self.world_size}: it goes on, but not as it would have"
            )
        self._loaded = {}

    def restore_process_state(self) -> None:
        """Put back the streams and gradients of the checkpoint, once."""
        state, self._process_state = self._process_state, None
        if state is None:
            return
        parameters = dict(self._bare_model.named_parameters())
        for name, gradient in state["gradients"].items():
            with_local_gradient(parameters[name], gradient)
        set_random_state(state["random"])
