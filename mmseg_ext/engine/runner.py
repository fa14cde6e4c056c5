"""mmengine's Runner for runs that can be killed at any moment and go on as if nothing had been.

What it adds to `mmengine.runner.Runner` (0.10.12), each because a resumed run differs without it:

- Checkpoints hold tensors and plain containers alone and are written beside and renamed.
- They hold the random streams of every process, the sampler's seed, and the gradients of an
  unfinished accumulation; `resume` puts these back before the first iteration.
- A resumed run starts from the newest checkpoint that reads whole.
- Order and augmentation of training samples follow from the seed and the position in the run.
- Validation leaves the random streams of training where they were.
"""

import copy
import time
from pathlib import Path

import mmengine
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils import get_git_hash
from torch import nn
from torch.utils.data import DataLoader

from mmseg_ext.checkpoint.errors import CheckpointError, CheckpointNotWritten
from mmseg_ext.checkpoint.load_report import MINIMUM_SHARE, minimum_share
from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.checkpoint.writing import newest_whole, write_checkpoint
from mmseg_ext.engine.deterministic import make_deterministic
from mmseg_ext.engine.random_state import random_state, set_random_state
from mmseg_ext.engine.sample_seeds import PositionedInfiniteSampler, isolate, with_sample_seeds


class _RandomStreams(Hook):
    """Put the streams of a checkpoint back at the first iteration, and around each validation."""

    priority = "VERY_HIGH"

    def __init__(self):
        self.during_val = None

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        runner.restore_process_state()

    def before_val(self, runner) -> None:
        self.during_val = random_state()

    def after_val_epoch(self, runner, metrics=None) -> None:  # before checkpoints are saved
        if self.during_val is not None:
            set_random_state(self.during_val)

    def after_val(self, runner) -> None:
        self.after_val_epoch(runner)


@RUNNERS.register_module()
class DurableRunner(Runner):
    """A Runner whose training survives: `runner_type = 'DurableRunner'` in a config.

    `min_backbone_share` in the config (0 to 1, 0.9 where absent) is how much of a backbone
    `load_from` and `init_cfg=dict(type='Pretrained')` must fill.
    """

    def __init__(self, *args, **kwargs):
        self._loaded: dict = {}
        self._process_state: dict | None = None
        super().__init__(*args, **kwargs)
        self.register_hook(_RandomStreams())

    # ------------------------------------------------------------------ building

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

    def _init_model_weights(self) -> None:
        with minimum_share(self.cfg.get("min_backbone_share", MINIMUM_SHARE)):
            super()._init_model_weights()

    def load_checkpoint(self, filename: str, *args, **kwargs) -> dict:
        with minimum_share(self.cfg.get("min_backbone_share", MINIMUM_SHARE)):
            self._loaded = super().load_checkpoint(filename, *args, **kwargs)
        return self._loaded

    # ------------------------------------------------------------------ running

    def train(self) -> nn.Module:
        try:
            return super().train()
        finally:
            self._release_workers()

    def test(self) -> dict[str, float]:
        try:
            return super().test()
        finally:
            self._release_workers()

    def _release_workers(self) -> None:
        """End the persistent workers of the loaders, which start anew if they are asked again.

        Left to the garbage collector, which frees a run's parts in any order, each worker is waited
        for until torch gives up on it, five seconds.
        """
        for loop in (self._train_loop, self._val_loop, self._test_loop):
            loader = getattr(loop, "dataloader", None)
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
                name: parameter.grad.cpu()
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
        if dist.is_main_process():
            content = self._content(
                save_optimizer, save_param_scheduler, dict(meta or {}), by_epoch
            )
            content["processes"] = own
            self.call_hook("before_save_checkpoint", checkpoint=content)
            dropped: list[str] = []
            content = to_plain(content, "", dropped)
            if dropped:
                self.logger.warning(f"not in the checkpoint, having no plain form: {dropped}")
            try:
                write_checkpoint(content, Path(out_dir, filename))
            except CheckpointNotWritten as error:
                failure = [str(error)]
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
        sampler = self.train_dataloader.sampler
        if isinstance(sampler, PositionedInfiniteSampler):
            meta["sampler_seed"] = sampler.seed
        content = {
            "meta": meta,
            "state_dict": self._bare_model.state_dict(),
            "message_hub": self.message_hub.state_dict(),
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
        if not self._has_loaded and self._resume and self._load_from is None:
            self._load_from = self._newest_whole()
            self._resume = True
        super().load_or_resume()

    def _newest_whole(self) -> str | None:
        """The first process looks, all take what it found."""
        found: list = [None, [], None]
        if dist.is_main_process():
            try:
                path, problems = newest_whole(self.work_dir)
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
        super().resume(filename, *args, **kwargs)
        seed = self._loaded["meta"].get("sampler_seed")
        sampler = self.train_dataloader.sampler
        if seed is not None and isinstance(sampler, PositionedInfiniteSampler):
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
            parameters[name].grad = gradient.to(parameters[name].device)
        set_random_state(state["random"])
