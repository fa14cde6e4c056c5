"""mmengine's Runner for runs that can be killed at any moment and go on as if nothing had been.

What it adds to `mmengine.runner.Runner` (0.10.12), each because a resumed run differs without it:

- Checkpoints hold tensors and plain containers alone, are written beside and renamed, and are read
  without running code.
- They hold the random streams of every process, the sampler's seed, and the gradients of an
  unfinished accumulation; `resume` puts these back before the first iteration.
- A resumed run starts from the newest of its own checkpoints that reads whole.
- Order and augmentation of training samples follow from the seed and the position in the run.
- Validation leaves the random streams of training where they were. A resumed run repeats a
  validation that was cut short, or that ended after its iteration was saved.
- In several processes validation uses the running statistics of the first, which are saved.
- A run knows its own checkpoints, and holds its work directory while it trains.
"""

import contextlib
import copy
import os
import platform
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.checkpoint.loading import SafeLoading, require_coverage, unwrap_model
from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.checkpoint.resuming import newest_complete, require_resumable
from mmseg_ext.engine.checkpoint_hook import checkpoint_folder
from mmseg_ext.engine.distributed import cut_like, whole, whole_optimizer_states
from mmseg_ext.engine.randomness import (
    isolate,
    make_deterministic,
    positioned_sampler,
    random_state,
    set_random_state,
    with_sample_seeds,
)
from mmseg_ext.engine.run_record import quiet_terminal
from mmseg_ext.errors import (
    SAFE_UNTIL_NOW,
    CheckpointError,
    LaunchError,
    NotWritten,
)
from mmseg_ext.upstream import built_dataloaders, resume_from, searches_checkpoint, validates_at


class _TrainingState(Hook):
    """Restores what a validation changes, and what a checkpoint holds of this process."""

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


class _AfterOthers(Hook):
    """What follows every other hook: a checkpoint's last entries, and an overdue validation."""

    priority = "LOWEST"

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        runner.complete(checkpoint)

    def before_train_epoch(self, runner) -> None:
        """Run the validation of the iteration that a resumed checkpoint was saved at."""
        loop, done = runner.train_loop, runner.message_hub.runtime_info.get("validated_iter")
        if runner.val_loop is None or runner.iter == 0 or done == runner.iter:
            return
        if isinstance(loop, IterBasedTrainLoop) and validates_at(loop, runner.iter):
            runner.logger.info(f"validation of iteration {runner.iter}, which the run had ended in")
            runner.restore_process_state()
            runner.val_loop.run()


def on_rank_zero(action: Callable[[], object]) -> object:
    """What `action` gives, or the error it raises, in the first process; in every process."""
    found: list = [None, None]
    if dist.is_main_process():
        try:
            found[0] = action()
        except (CheckpointError, LaunchError) as error:
            found[1] = error
    dist.broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    return found[0]


@contextlib.contextmanager
def _sole_training(work_dir: str) -> Iterator[None]:
    """Hold the work directory, until the process ends in any way.

    The workers of a killed process hold the lock with it until they notice, within five seconds.

    Raises:
        LaunchError: where another process holds it.
    """
    owner = Path(work_dir, ".training")
    owner.parent.mkdir(parents=True, exist_ok=True)
    lock = Path(f"{owner}.lock")
    if lock.is_symlink():  # a copied folder can contain a link to any file, which locking empties
        lock.unlink()
    try:
        held = FileLock(lock).acquire(timeout=2 * MP_STATUS_CHECK_INTERVAL)
    except Timeout as error:
        raise LaunchError(
            f"work dir {str(work_dir)!r}: another training is running in it "
            f"({owner.read_text().strip() if owner.exists() else 'of unknown process'}); wait for "
            "it to end, or name another with --work-dir"
        ) from error
    with held:
        write_text(f"process {os.getpid()} on {platform.node()}\n", owner)
        yield


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
        self.register_hook(_AfterOthers())

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
        built = super().build_optim_wrapper(optim_wrapper)
        for wrapper in built.values() if isinstance(built, OptimWrapperDict) else (built,):
            whole_optimizer_states(wrapper.optimizer)
        return built

    def _safe_loading(self) -> SafeLoading:
        return SafeLoading(self.cfg.get("min_backbone_share"))

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        with self._safe_loading():
            self._loaded = super().load_checkpoint(filename, *args, **kwargs)
        if self._resuming:
            require_resumable(self._loaded, filename)
        return self._loaded

    def train(self) -> nn.Module:
        with contextlib.ExitStack() as held:
            on_rank_zero(lambda: held.enter_context(_sole_training(self.work_dir)))
            held.callback(self._release_workers)
            held.enter_context(self._safe_loading())
            return super().train()

    def test(self) -> dict[str, float]:
        try:
            with self._safe_loading(), require_coverage(entire_model=True):
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

    def _own_state(self) -> dict:
        """What of the state is this process's own."""
        return {
            "random": random_state(),
            "gradients": {
                name: whole(parameter.grad).cpu()
                for name, parameter in unwrap_model(self.model).named_parameters()
                if parameter.grad is not None  # none after a step: an accumulation is under way
            },
        }

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        file_client_args: dict | None = None,
        save_optimizer: bool = True,
        **settings,
    ) -> None:
        """Write the file in a folder, whole or not at all; every process must call it.

        Raises:
            CheckpointError: in every process, where the first cannot write the file.
        """
        self._processes = dist.all_gather_object(self._own_state()) if save_optimizer else []

        def write() -> None:
            try:
                with atomic_write(Path(out_dir, filename)) as part:
                    folder, name = str(part.parent), part.name
                    Runner.save_checkpoint(self, folder, name, None, save_optimizer, **settings)
            except NotWritten as error:
                raise CheckpointError(f"{error}; {SAFE_UNTIL_NOW}") from error

        if not dist.is_main_process():  # every process takes part where the state is in shards
            unwrap_model(self.model).state_dict()
            if save_optimizer:
                self.optim_wrapper.state_dict()
        on_rank_zero(write)

    def complete(self, checkpoint: dict) -> None:
        """Add to mmengine's checkpoint what an exact resume needs, and leave plain data in it."""
        checkpoint["meta"]["run"] = self.run_id
        sampler = positioned_sampler(self.train_dataloader)
        if sampler is not None:
            checkpoint["meta"]["sampler_seed"] = sampler.seed
        checkpoint["processes"] = self._processes
        dropped: list[str] = []
        checkpoint.update({k: to_plain(v, k, dropped) for k, v in checkpoint.items()})
        info = checkpoint["message_hub"]["runtime_info"]
        for key, path in info.items():
            if key.startswith(("best_ckpt", "last_ckpt")) and path is not None:
                info[key] = Path(path).name  # so that a copied folder leaves this one alone
        if dropped:
            self.logger.warning(f"not in the checkpoint, having no plain form: {dropped}")

    def load_or_resume(self) -> None:
        if searches_checkpoint(self):
            path, problems = on_rank_zero(lambda: newest_complete(checkpoint_folder(self.cfg)))
            for problem in problems:
                self.logger.warning(f"{problem}; taking the checkpoint before it")
            resume_from(self, None if path is None else str(path))
        super().load_or_resume()

    def resume(self, filename: str, *args, **kwargs) -> None:
        self._resuming = True
        configured = self._optimizer_settings()
        with require_coverage(entire_model=True):
            super().resume(filename, *args, **kwargs)
        self._resuming = False
        for name, kept in self._optimizer_settings().items():
            if kept != configured[name]:
                self.logger.warning(
                    f"{name}: the run goes on with the checkpoint's {sorted(kept)}, not with the "
                    f"config's {sorted(configured[name])}; to train with these, start a new run "
                    "from the weights (load_from)"
                )
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

    def _optimizer_settings(self) -> dict[str, set[float]]:
        """The learning rates before any schedule, and the weight decays, of all groups."""
        built = self.optim_wrapper
        wrappers = built.values() if isinstance(built, OptimWrapperDict) else (built,)
        groups = [group for wrapper in wrappers for group in wrapper.optimizer.param_groups]
        return {
            "learning rate": {float(group.get("initial_lr", group["lr"])) for group in groups},
            "weight decay": {float(group.get("weight_decay", 0)) for group in groups},
        }

    def restore_process_state(self) -> None:
        """Put back the streams and gradients of the checkpoint, once."""
        state, self._process_state = self._process_state, None
        if state is None:
            return
        parameters = dict(unwrap_model(self.model).named_parameters())
        for name, gradient in state["gradients"].items():
            parameter = parameters[name]
            parameter.grad = cut_like(gradient.to(parameter.device), parameter)
        set_random_state(state["random"])
