"""A Runner that resumes bit-exactly after being killed.

Differences from `mmengine.runner.Runner` (0.10.12):

- Checkpoints contain only tensors and plain containers, are written atomically, and are read
  without unpickling.
- Checkpoints store the random state of every rank, the sampler's seed, and the gradients of an
  unfinished accumulation.
- Sample order and augmentation depend only on the seed and the position in the run.
- Validation does not change the random state of training. A resumed run repeats a validation that
  was cut short, or that ended after its iteration was saved.
- In several processes, validation uses the running statistics of rank 0, which are saved.
- `--resume` continues from the newest complete checkpoint of the same run.
- The history of logged values has the length that the log processor reads.
- The work directory is locked during training.
- cuDNN's benchmark mode is off outside training, where image sizes vary.
"""

import contextlib
import copy
import itertools
import logging
import os
import time
import uuid
from pathlib import Path
from typing import Any

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.registry import RUNNERS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import nn
from torch.backends import cudnn
from torch.utils.data import DataLoader

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.durable import randomness
from mmseg_ext.durable.checkpoint_files import newest_complete, require_resumable
from mmseg_ext.durable.checkpoint_hook import checkpoint_folder
from mmseg_ext.durable.history import ShortHistoryHook
from mmseg_ext.durable.lock import lock_work_dir
from mmseg_ext.durable.optimizer_state import fit_optimizer_state, laid_out_as
from mmseg_ext.durable.plain_data import to_plain
from mmseg_ext.durable.quiet_terminal import quiet_terminal
from mmseg_ext.durable.rank_zero import on_rank_zero
from mmseg_ext.durable.safe_loading import SafeLoading, unwrap_model
from mmseg_ext.durable.signals import StopOnSignalHook
from mmseg_ext.errors import SAFE_UNTIL_NOW, CheckpointError, NotWritten
from mmseg_ext.upstream import resume_from, searches_checkpoint, shut_down_workers, validates_at


def _is_not_about_lost_gradients(record: logging.LogRecord) -> bool:
    """Return False for mmengine's warning about a resume within an accumulation."""
    return "gradient of some iterations is lost" not in record.getMessage()


class _TrainingState(Hook):
    """Restores the state that a validation changes, and the process state of a checkpoint."""

    priority = "VERY_HIGH"

    def __init__(self):
        self._random: dict | None = None  # of training, during a validation
        self._statistics: list[torch.Tensor] = []
        self._benchmark = cudnn.benchmark  # of the config

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        runner.restore_process_state()
        cudnn.benchmark = self._benchmark

    def before_val(self, runner) -> None:
        self._random = randomness.random_state()
        cudnn.benchmark = False

    def before_test(self, runner) -> None:
        cudnn.benchmark = False

    def before_val_iter(self, runner, batch_idx, data_batch=None) -> None:
        # At the first iteration and not in `before_val_epoch`: there EMAHook, which runs later,
        # still has to swap in the averaged weights and statistics.
        if batch_idx == 0 and runner.world_size > 1:
            self._statistics = [buffer.clone() for buffer in runner.model.buffers()]
            for buffer in runner.model.buffers():
                dist.broadcast(buffer)

    def after_val_epoch(self, runner, metrics=None) -> None:
        # Not in `after_val`: the checkpoint hook saves the best checkpoint at this point, later.
        for buffer, own in zip(runner.model.buffers(), self._statistics, strict=False):
            buffer.copy_(own)
        self._statistics = []
        runner.message_hub.update_info("validated_iter", runner.iter)

    def after_val(self, runner) -> None:
        if self._random is not None:
            randomness.set_random_state(self._random)
        self._random = None

    def random_state(self) -> dict:
        """Return the random state of training, also during a validation."""
        return self._random or randomness.random_state()


class _AfterOthers(Hook):
    """Completes a checkpoint after all other hooks, and runs an overdue validation."""

    priority = "LOWEST"

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        runner.add_resume_state(checkpoint)

    def before_train_epoch(self, runner) -> None:
        """Run the validation of the iteration at which a resumed checkpoint was saved."""
        loop, done = runner.train_loop, runner.message_hub.runtime_info.get("validated_iter")
        if runner.val_loop is None or runner.iter == 0 or done == runner.iter:
            return
        if not (isinstance(loop, IterBasedTrainLoop) and validates_at(loop, runner.iter)):
            return
        runner.logger.info(f"repeating the validation of iteration {runner.iter}")
        runner.restore_process_state()
        runner.message_hub.update_info("iter", runner.iter - 1)  # as in the loop of iterations
        runner.val_loop.run()


@RUNNERS.register_module()
class DurableRunner(Runner):
    """The Runner of `runner_type = 'DurableRunner'`: see the module's documentation.

    `min_backbone_share` in the config (0 to 1, by default 0.9) is the share of a backbone's values
    that `load_from` and `init_cfg=dict(type='Pretrained')` must fill.
    """

    def __init__(self, *args, **kwargs):
        self._resuming = False
        self._process_state: tuple[str, dict] | None = None  # of this file, not yet restored
        self._host_group: Any = None  # a process group of gloo
        self.run_id = uuid.uuid4().hex  # a resumed run continues with the checkpoint's
        self._terms: dict[str, str] = {}  # of the weights from which the run starts
        super().__init__(*args, **kwargs)
        self._training_state = _TrainingState()
        self.register_hook(self._training_state)
        self.register_hook(_AfterOthers())
        self.register_hook(ShortHistoryHook())

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        quiet_terminal(logger)
        return logger

    def set_randomness(self, *args, **kwargs) -> None:
        super().set_randomness(*args, **kwargs)
        if self.deterministic:  # CUDA's matrix products need this before the first one runs
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def dump_config(self) -> None:
        """Do nothing: `train` and `test` write the config, `train` after locking the folder."""

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args, **kwargs) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        settings = randomness.with_sample_seeds(copy.deepcopy(dataloader))
        return randomness.isolate_loader(Runner.build_dataloader(settings, *args, **kwargs))

    def _safe_loading(self, entire_model: bool = False) -> SafeLoading:
        return SafeLoading(self.cfg.get("min_backbone_share"), entire_model, self._terms)

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        with self._safe_loading(entire_model=self._resuming):
            content = super().load_checkpoint(filename, *args, **kwargs)
        if self._resuming:
            require_resumable(content, filename)
            if "optimizer" in content:
                wrapper: Any = self.optim_wrapper  # built, and no config
                fit_optimizer_state(wrapper, content["optimizer"], filename)
            self._take_resume_state(content, filename)
        return content

    def train(self) -> nn.Module:
        with contextlib.ExitStack() as stack:
            for hook in self.hooks:
                if isinstance(hook, StopOnSignalHook):
                    hook.before_train(self)  # loading can take minutes
                    stack.callback(hook.after_train, self)  # also after an error
            on_rank_zero(lambda: stack.enter_context(lock_work_dir(self.work_dir)))
            super().dump_config()
            stack.callback(shut_down_workers, self)
            stack.enter_context(self._safe_loading())
            return super().train()

    def test(self) -> dict[str, float]:
        super().dump_config()
        try:
            with self._safe_loading(entire_model=True):
                return super().test()
        finally:
            shut_down_workers(self)

    def save_checkpoint(self, out_dir: str, filename: str, *args, **settings) -> None:
        """Write a checkpoint atomically; every process must call this.

        Raises:
            CheckpointError: in every process, if rank 0 cannot write the file.
        """
        parameters = unwrap_model(self.model).named_parameters()
        own = {
            "random": self._training_state.random_state(),
            # There are gradients only within an accumulation: a step removes them.
            "gradients": {n: p.grad.cpu() for n, p in parameters if p.grad is not None},
        }
        if dist.is_distributed() and dist.get_backend() != "gloo" and self._host_group is None:
            # nccl would copy the gradients of all ranks through every GPU.
            self._host_group = torch.distributed.new_group(backend="gloo")
        self._processes = dist.gather_object(own, group=self._host_group) or []  # on rank 0

        def write() -> None:
            try:
                with atomic_write(Path(out_dir, filename)) as part:
                    Runner.save_checkpoint(self, str(part.parent), part.name, *args, **settings)
            except NotWritten as error:
                raise CheckpointError(f"{error}; {RESUME_HINT}") from error

        on_rank_zero(write)

    def add_resume_state(self, checkpoint: dict) -> None:
        """Add the state for an exact resume to mmengine's checkpoint, and make its data plain."""
        checkpoint["meta"] |= {**self._terms, "run": self.run_id, "saved_at": time.time()}
        sampler = randomness.positioned_sampler(self.train_dataloader)
        if sampler is not None:
            checkpoint["meta"]["sampler_seed"] = sampler.seed
        checkpoint["processes"] = self._processes
        dropped: list[str] = []
        checkpoint.update({k: to_plain(v, k, dropped) for k, v in checkpoint.items()})
        info = checkpoint["message_hub"]["runtime_info"]
        for key, path in info.items():
            if key.startswith(("best_ckpt", "last_ckpt")) and path is not None:
                info[key] = Path(path).name  # a copied folder must not refer to the original
        if dropped:
            self.logger.warning(f"checkpoint: left out, because not plain data: {dropped}")

    def load_or_resume(self) -> None:
        if searches_checkpoint(self):
            path, problems = on_rank_zero(lambda: newest_complete(checkpoint_folder(self.cfg)))
            for problem in problems:
                self.logger.warning(f"{problem}; trying the checkpoint before it")
            resume_from(self, None if path is None else str(path))
        super().load_or_resume()

    def resume(self, filename: str, *args, **kwargs) -> None:
        configured = self._optimizer_settings()
        self._resuming = True
        super().resume(filename, *args, **kwargs)
        self._resuming = False
        for name, kept in self._optimizer_settings().items():
            if kept != configured[name]:
                self.logger.warning(
                    f"{filename}: the checkpoint's {name} {sorted(kept)} overrides the config's "
                    f"{sorted(configured[name])}; to use the config's, start a new run from the "
                    "weights (load_from)"
                )

    def _take_resume_state(self, checkpoint: dict, filename: str) -> None:
        """Continue what `add_resume_state` added to the checkpoint."""
        self.run_id = checkpoint["meta"].get("run") or self.run_id
        sampler = randomness.positioned_sampler(self.train_dataloader)
        if sampler is not None:
            sampler.seed = checkpoint["meta"].get("sampler_seed", sampler.seed)
        own = checkpoint.get("processes") or []
        if len(own) == self.world_size:
            self._process_state = filename, own[self.rank]
            if isinstance(own[self.rank], dict) and own[self.rank].get("gradients"):
                self.logger.addFilter(_is_not_about_lost_gradients)
        else:
            self.logger.warning(
                f"{filename}: contains the random state of {len(own)} processes, and this run has "
                f"{self.world_size}; the resumed run is not bit-exact"
            )

    def _optimizer_settings(self) -> dict[str, set[float]]:
        """Return the learning rates before any schedule, and the weight decays, of all groups."""
        wrapper: Any = self.optim_wrapper  # built, and no config
        groups = wrapper.param_groups
        if isinstance(groups, dict):  # of several optimizers
            groups = [*itertools.chain(*groups.values())]
        return {
            "learning rate": {float(group.get("initial_lr", group["lr"])) for group in groups},
            "weight decay": {float(group.get("weight_decay", 0)) for group in groups},
        }

    def restore_process_state(self) -> None:
        """Restore the random state and the gradients of a resumed checkpoint, once."""
        waiting, self._process_state = self._process_state, None
        if waiting is None:
            return
        filename, state = waiting
        parameters = dict(unwrap_model(self.model).named_parameters())
        try:
            for name, gradient in state["gradients"].items():
                parameters[name].grad = laid_out_as(parameters[name], gradient, "gradient")
            randomness.set_random_state(state["random"])
        except Exception as error:  # of a crafted file; each generator has its own errors
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"{filename}: its random state or gradients cannot be restored "
                f"({type(error).__name__}: {reason}); resume from another checkpoint with "
                "--cfg-options load_from=FILE"
            ) from error
