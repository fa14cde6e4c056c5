"""The state of a run besides its weights, as a resume restores it: of processes and optimizers.

Each process has its own random state, and gradients within an accumulation. `ProcessStateHook`
collects them for a checkpoint and restores them. mmengine restores optimizers; before,
`fit_optimizer_state` checks that a saved state fits, because torch's fused steps would read and
write other memory if it did not.
"""

from typing import Any

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor
from torch.optim import Optimizer

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.durable.optimizer_groups import can_select_fused
from mmseg_ext.durable.randomness import random_state, set_random_state
from mmseg_ext.errors import CheckpointError, RunError, one_line

# States that torch's fused steps read and write without a check of their size.
_LIKE_PARAMETERS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")
# Settings by which optimizers differ.
_KINDS = ("betas", "momentum", "dampening", "alpha", "rho", "etas", "lr_decay")
# They select how torch computes a step, and its sign.
_OF_THE_CONFIG = ("fused", "foreach", "capturable", "differentiable", "maximize")


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


def fit_optimizer_state(wrapper: OptimWrapper | OptimWrapperDict, saved: dict, name: str) -> None:
    """Prepare `saved`, from the checkpoint `name`, for `wrapper.load_state_dict`, in place.

    The groups keep the implementation that the config selects. If the config leaves the choice, the
    run continues with fused steps if it began with them. Each state tensor gets the memory layout
    of its parameter.

    Raises:
        CheckpointError: for other groups, or a state tensor of another shape than its parameter, if
            the optimizer has a fused implementation. States of other optimizers can have any shape.
    """
    try:
        if isinstance(wrapper, OptimWrapperDict):
            for key, part in wrapper.items():
                _fit(part.optimizer, saved[key])
        else:
            _fit(wrapper.optimizer, saved)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{name}: its optimizer state does not fit this model and optimizer "
            f"({one_line(error, 200)}); to start from its weights, use --cfg-options "
            f"load_from={name} without --resume"
        ) from error


def _fit(optimizer: Optimizer, saved: dict) -> None:
    keeps_fused = can_select_fused(optimizer)
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        _fit_group(own, group, keeps_fused)
        if "fused" not in optimizer.defaults:
            continue
        counted_on_device = group.get("fused") or group.get("capturable")
        for number, parameter in zip(group["params"], own["params"], strict=True):
            _fit_state(saved["state"].get(number, {}), parameter, counted_on_device)


def _fit_group(own: dict, group: dict, keeps_fused: bool) -> None:
    """Set the settings of `_OF_THE_CONFIG` in a saved group to the values of the config's group."""
    for key in _KINDS:  # newer versions of torch add other settings
        if (key in own) != (key in group):
            raise ValueError(f"only one of the two optimizers has {key}")
    began_fused = group.get("fused") is True
    for key in _OF_THE_CONFIG:
        if key in own:
            group[key] = own[key]
        else:
            group.pop(key, None)
    if keeps_fused and began_fused:
        group["fused"] = True


def _fit_state(state: dict, parameter: Tensor, counted_on_device: bool) -> None:
    for key, value in state.items():
        if not isinstance(value, Tensor):
            continue
        if key == "step":
            # On a GPU, torch's other steps would wait for the number of each parameter.
            device = parameter.device if counted_on_device else "cpu"
            state[key] = laid_out_as(value.new_empty((), device=device), value, key)
        elif value.ndim > 0 or key in _LIKE_PARAMETERS:
            state[key] = laid_out_as(parameter, value, key)


def laid_out_as(parameter: Tensor, value: Tensor, name: str) -> Tensor:
    """Return `value` with the device and the memory layout of `parameter`, called `name` in errors.

    Raises:
        ValueError: for another shape.
    """
    given, own = tuple(value.shape), tuple(parameter.shape)
    if given != own:
        raise ValueError(f"{name} has the shape {given} for a parameter of shape {own}")
    if value.stride() == parameter.stride():
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
