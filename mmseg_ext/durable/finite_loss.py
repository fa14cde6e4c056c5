"""A hook that stops a run before a loss or gradient that is not finite reaches the weights."""

import functools

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.errors import RunError


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stops the run before an optimizer step if a loss or a gradient is not finite.

    All losses since the last step are checked, in every process, with one synchronization per step.
    The message names the iteration, the loss or the parameter, and the image files. Nothing is
    saved: the last checkpoint is from before. With a float16 gradient scaler the hook does nothing:
    the scaler itself skips such a step and lowers its scale.
    """

    def __init__(self):
        self._stepped = False  # since the last batch
        self._images: list[str] = []  # of the iterations since the last step
        self._losses: list[tuple[int, Tensor]] = []  # iteration and loss, since the last step
        self._handles: list[RemovableHandle] = []
        self._optimizers: list[Optimizer] = []

    def before_train(self, runner) -> None:
        wrapper = runner.optim_wrapper
        for one in wrapper.values() if isinstance(wrapper, OptimWrapperDict) else (wrapper,):
            scaler = getattr(one, "loss_scaler", None)
            if scaler is None or not scaler.is_enabled():
                check = functools.partial(self._check_step, runner)
                self._handles.append(one.optimizer.register_step_pre_hook(check))
                self._optimizers.append(one.optimizer)
        if not self._handles:
            return

        # A function, because a copy of the model would copy the Runner of a method or a partial.
        def record(model: BaseModel, inputs, batch: dict, outputs) -> None:
            named = isinstance(outputs, dict) and any("loss" in str(key) for key in outputs)
            if model.training and named:
                self._record(runner.iter + 1, model.parse_losses(outputs)[0].detach(), batch)

        model = unwrap_model(runner.model)
        self._handles.append(model.register_forward_hook(record, with_kwargs=True))

    def before_state_dict(self, runner) -> None:
        """Check an unfinished accumulation, whose gradients `DurableRunner` is going to save."""
        if self._losses and not self._stepped:
            for optimizer in self._optimizers:
                self._require_finite(runner, optimizer)

    def after_train(self, runner) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, iteration: int, loss: Tensor, batch: dict) -> None:
        if self._stepped:
            self._images, self._losses, self._stepped = [], [], False
        self._losses.append((iteration, loss))
        for sample in batch.get("data_samples") or ():
            self._images.append(sample.get("img_path", "unknown"))

    def _check_step(self, runner, optimizer: Optimizer, args, kwargs) -> None:
        self._require_finite(runner, optimizer)
        self._stepped = True

    def _require_finite(self, runner, optimizer: Optimizer) -> None:
        """Raise a RunError for losses or gradients that are not finite, in every process."""
        failed = _any_not_finite(optimizer, [loss for _, loss in self._losses])
        dist.all_reduce(failed, "max")
        if failed:
            # Every process reaches this line, and reports one problem of all.
            problem = _find_problem(runner, self._losses)
            problem = problem and (
                f"{problem}; the weights are unchanged. Images of the batch: "
                f"{', '.join(self._images) or 'unknown'}. --resume continues from the last "
                "checkpoint and reaches the same batch"
            )
            problems = [text for text in dist.all_gather_object(problem) if text]
            # Averaged gradients have the loss of another process.
            problems.sort(key=lambda text: not text.startswith("the loss"))
            raise RunError([*problems, "not finite"][0])


def _any_not_finite(optimizer: Optimizer, losses: list[Tensor]) -> Tensor:
    """Return 1.0 if a loss or a gradient of this process is not finite, else 0.0."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None and p.numel()]
    gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    if gradients:
        losses = [*losses, *torch._foreach_norm(gradients, torch.inf)]
    return (~torch.stack([v.float().abs().sum() for v in losses]).isfinite()).any().float()


def _find_problem(runner, losses: list[tuple[int, Tensor]]) -> str | None:
    """Return the first loss or gradient of this process that is not finite."""
    for iteration, loss in losses:
        if not loss.isfinite().all():
            return f"the loss is {loss.sum().item()} at iteration {iteration}"
    for name, parameter in runner.model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite at iteration {runner.iter + 1}"
    return None
