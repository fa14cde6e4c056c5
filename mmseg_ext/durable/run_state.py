"""The hooks that a `DurableRunner` adds to every run, with the state that a resume restores.

They are not in configs, because a run resumes exactly only with all of them.
"""

from pathlib import Path
from typing import Any

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, LogProcessor

from mmseg_ext.checkpoint.plain_data import to_plain
from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.durable.optimizer_state import laid_out_as
from mmseg_ext.durable.randomness import random_state, set_random_state
from mmseg_ext.errors import RunError, one_line
from mmseg_ext.upstream import validates_at


class ProcessStateHook(Hook):
    """Keeps the random state and the gradients of each process exact.

    A resumed run restores them before its first iteration or validation. At a validation all
    processes get the running statistics of rank 0, which are saved.
    """

    priority = "VERY_HIGH"

    def __init__(self):
        self._resumed: tuple[str, dict] | None = None  # of this file, not yet restored
        self._random: dict = {}  # of training, during a validation
        self._host_group: Any = None

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        self._restore(runner)

    def before_val(self, runner) -> None:
        self._restore(runner)
        self._random = random_state()

    def before_val_iter(self, runner, batch_idx, data_batch=None) -> None:
        # At the first iteration and not in `before_val_epoch`: there EMAHook, which runs later,
        # still has to swap in the averaged weights and statistics.
        if batch_idx == 0:
            for buffer in runner.model.buffers():
                dist.broadcast(buffer)

    def after_val_epoch(self, runner, metrics=None) -> None:
        # Not in `after_val`: the checkpoint hook saves the best checkpoint at this point, later.
        runner.message_hub.update_info("last_validation", runner.iter)

    def after_val(self, runner) -> None:
        set_random_state(self._random)
        self._random = {}

    def state_dict(self, runner) -> list[dict]:
        """Return the states of all processes on rank 0; every process must call this."""
        gradients = {}  # only within an accumulation: a step removes them
        for name, parameter in unwrap_model(runner.model).named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.cpu()
        own = {"random": self._random or random_state(), "gradients": gradients}
        uses_nccl = dist.is_distributed() and dist.get_backend() != "gloo"
        if uses_nccl and self._host_group is None:
            # It would copy the gradients of all ranks through every GPU.
            self._host_group = torch.distributed.new_group(backend="gloo")
        return dist.gather_object(own, group=self._host_group) or []

    def load_state_dict(self, runner, states: list[dict] | None, filename: str) -> None:
        """Restore the state of this process later; warn if the number of processes differs."""
        if not isinstance(states, list):
            states = []
        if len(states) != runner.world_size:
            runner.logger.warning(
                f"{filename}: contains the random state of {len(states)} processes, and this run "
                f"has {runner.world_size}; the resumed run is not bit-exact"
            )
            return
        own = states[runner.rank]
        self._resumed = filename, own
        if isinstance(own, dict) and own.get("gradients"):
            # mmengine warns that a resume within an accumulation loses them.
            lost = "gradient of some iterations is lost"
            runner.logger.addFilter(lambda record: lost not in record.getMessage())

    def _restore(self, runner) -> None:
        """Restore the random state and the gradients of a resumed checkpoint, once."""
        if self._resumed is None:
            return
        filename, state = self._resumed
        self._resumed = None
        parameters = dict(unwrap_model(runner.model).named_parameters())
        try:
            for name, gradient in state["gradients"].items():
                parameters[name].grad = laid_out_as(parameters[name], gradient, "gradient")
            set_random_state(state["random"])
        except Exception as error:  # of a crafted file; each generator has its own errors
            raise RunError(  # not the same in all processes, so each one prints it
                f"{filename}: its random state or gradients cannot be restored "
                f"({type(error).__name__}: {one_line(error, 200)}); resume from another checkpoint "
                "with --cfg-options load_from=FILE"
            ) from error


class PlainCheckpointHook(Hook):
    """Makes all data of a checkpoint plain, after other hooks have added theirs."""

    priority = "LOWEST"

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint["processes"] = checkpoint["meta"].pop("processes")
        dropped: list[str] = []
        for key, value in checkpoint.items():
            checkpoint[key] = to_plain(value, key, dropped)
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
        if runner.val_loop is None or step == 0:
            return
        if hub.runtime_info.get("last_validation", -1) >= iteration:
            return
        if not validates_at(loop, step, last):
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
        if type(processor) is not LogProcessor:
            return
        windows: list[Any] = [processor.window_size]
        for column in processor.custom_cfg:
            windows.append(column.get("window_size"))
        if any(type(window) is not int for window in windows):  # 'global'
            return
        # At the end of a validation its times are averaged.
        batches = 0 if runner.val_loop is None else len(runner.val_dataloader)
        self._length = max(*windows, batches)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if self._length is not None:
            for history in runner.message_hub.log_scalars.values():
                history.max_length = self._length  # used when the next value is added
