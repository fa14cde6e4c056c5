"""The state that differs between the processes of a run, and that a validation must not change."""

import logging
from typing import Any

import torch
from mmengine import dist
from mmengine.hooks import Hook
from torch.backends import cudnn

from mmseg_ext.durable.optimizer_state import laid_out_as
from mmseg_ext.durable.randomness import random_state, set_random_state
from mmseg_ext.durable.safe_loading import unwrap_model
from mmseg_ext.errors import RunError


def _is_not_about_lost_gradients(record: logging.LogRecord) -> bool:
    """Return False for mmengine's warning about a resume within an accumulation."""
    return "gradient of some iterations is lost" not in record.getMessage()


class ProcessStateHook(Hook):
    """Keeps the random state, the gradients and the running statistics of each process exact.

    A resumed run restores them before its first iteration or validation. A validation in several
    processes uses the running statistics of rank 0, which are saved.
    """

    priority = "VERY_HIGH"

    def __init__(self):
        self._resumed: tuple[str, dict] | None = None  # of this file, not yet restored
        self._random: dict = {}  # of training, during a validation
        self._statistics: list[torch.Tensor] = []  # of this process, during a validation
        self._benchmark = cudnn.benchmark  # of the config
        self._host_group: Any = None

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        self._restore(runner)
        cudnn.benchmark = self._benchmark

    def before_val(self, runner) -> None:
        self._restore(runner)
        self._random = random_state()
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
        set_random_state(self._random)
        self._random = {}

    def state_dict(self, runner) -> list[dict]:
        """Return the states of all processes on rank 0; every process must call this."""
        parameters = unwrap_model(runner.model).named_parameters()
        own = {
            "random": self._random or random_state(),
            # There are gradients only within an accumulation: a step removes them.
            "gradients": {n: p.grad.cpu() for n, p in parameters if p.grad is not None},
        }
        if dist.is_distributed() and dist.get_backend() != "gloo" and self._host_group is None:
            # nccl would copy the gradients of all ranks through every GPU.
            self._host_group = torch.distributed.new_group(backend="gloo")
        return dist.gather_object(own, group=self._host_group) or []

    def load_state_dict(self, runner, states: list[dict] | None, filename: str) -> None:
        """Restore the state of this process later; warn if the number of processes differs."""
        states = states or []
        if len(states) != runner.world_size:
            runner.logger.warning(
                f"{filename}: contains the random state of {len(states)} processes, and this run "
                f"has {runner.world_size}; the resumed run is not bit-exact"
            )
            return
        own = states[runner.rank]
        self._resumed = filename, own
        if isinstance(own, dict) and own.get("gradients"):
            runner.logger.addFilter(_is_not_about_lost_gradients)

    def _restore(self, runner) -> None:
        """Restore the random state and the gradients of a resumed checkpoint, once."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return
        filename, state = resumed
        parameters = dict(unwrap_model(runner.model).named_parameters())
        try:
            for name, gradient in state["gradients"].items():
                parameters[name].grad = laid_out_as(parameters[name], gradient, "gradient")
            set_random_state(state["random"])
        except Exception as error:  # of a crafted file; each generator has its own errors
            reason = " ".join(str(error).split())[:200]
            raise RunError(  # not the same in all processes, so each one prints it
                f"{filename}: its random state or gradients cannot be restored "
                f"({type(error).__name__}: {reason}); resume from another checkpoint with "
                "--cfg-options load_from=FILE"
            ) from error
