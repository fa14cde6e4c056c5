"""A hook that stops a run before a loss or gradient that is not finite reaches the weights."""

import functools

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from torch import Tensor
from torch.cuda.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mmseg_ext.durable.safe_loading import unwrap_model
from mmseg_ext.errors import RunError

_FIRST = 3  # iterations
_NO_LABELS = (
    f"train_dataloader: the loss of the first {_FIRST} iterations is exactly 0, so every pixel is "
    "ignored; check the label maps (mmseg-ext check_dataset CONFIG), reduce_zero_label and "
    "ignore_index"
)


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stops the run before an optimizer step if a loss or a gradient is not finite.

    All losses since the last step are checked, in every process, with one synchronization per step.
    The message names the iteration, the loss or the parameter, and the image files. Nothing is
    saved: the last checkpoint is from before. A float16 gradient scaler skips such a step and
    lowers its scale; the run stops only after more than `max_skipped` skipped steps in a row.

    A loss of exactly zero in each of the first three iterations is a warning: no pixel has a label.
    """

    def __init__(self, max_skipped: int = 20):
        self.max_skipped = max_skipped
        self._zeros = 0  # losses of zero among the first iterations
        self._skipped = 0  # steps in a row that the scaler skipped
        self._stepped = False  # since the last batch
        self._images: list[str] = []  # of the iterations since the last step
        self._losses: dict[int, Tensor] = {}  # iteration -> loss, since the last step
        self._handles: list[RemovableHandle] = []

    def before_train(self, runner) -> None:
        wrapper = runner.optim_wrapper
        for one in wrapper.values() if isinstance(wrapper, OptimWrapperDict) else (wrapper,):
            check = functools.partial(self._check_step, runner, _scaler(one) is not None)
            self._handles.append(one.optimizer.register_step_pre_hook(check))

        # A function, because a copy of the model would copy the Runner of a method or a partial.
        def record(model: BaseModel, inputs, outputs) -> None:
            if model.training and isinstance(outputs, dict):
                self._record_loss(runner, model.parse_losses(outputs)[0].detach())

        self._handles.append(unwrap_model(runner.model).register_forward_hook(record))

    def after_train(self, runner) -> None:
        for handle in self._handles:
            handle.remove()

    def _record_loss(self, runner, loss: Tensor) -> None:
        self._losses[runner.iter + 1] = self._losses.get(runner.iter + 1, 0) + loss
        if runner.iter < _FIRST and not loss.any():
            self._zeros += 1
            if self._zeros == _FIRST:
                runner.logger.warning(_NO_LABELS)

    def _check_step(self, runner, scaled: bool, optimizer: Optimizer, args, kwargs) -> None:
        """Raise a RunError instead of a step with losses or gradients that are not finite."""
        failed = _any_not_finite(optimizer, [] if scaled else list(self._losses.values()))
        if scaled:  # the scaler steps only if all are finite, but leaves this to fused optimizers
            self._stepped = not failed
            return
        dist.all_reduce(failed, "max")
        if failed:
            # Every process reaches this line, and reports one problem of all.
            problem = _find_problem(runner, self._losses)
            problem = problem and f"{problem}; {self._name_images()}"
            problems = [text for text in dist.all_gather_object(problem) if text]
            # Averaged gradients have the loss of another process.
            problems.sort(key=lambda text: not text.startswith("the loss"))
            raise RunError([*problems, "not finite"][0])
        self._stepped = True

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        scaler = _scaler(runner.optim_wrapper)
        if scaler is None or not runner.optim_wrapper.should_update():
            return
        self._skipped = 0 if self._stepped else self._skipped + 1
        self._stepped = True
        if self._skipped > self.max_skipped:
            raise RunError(
                f"the gradient scaler skipped {self._skipped} steps in a row, up to iteration "
                f"{runner.iter + 1}, and its scale is now {scaler.get_scale():g}; "
                f"{self._name_images()}"
            )

    def _name_images(self) -> str:
        images = ", ".join(self._images) or "unknown"
        return (
            f"the weights are unchanged. Images of the batch: {images}. --resume continues from "
            "the last checkpoint and reaches the same batch"
        )

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if self._stepped:
            self._images, self._losses, self._stepped = [], {}, False
        samples = data_batch.get("data_samples", ()) if isinstance(data_batch, dict) else ()
        self._images += [s.metainfo["img_path"] for s in samples if "img_path" in s.metainfo]


def _scaler(wrapper: OptimWrapper | OptimWrapperDict) -> GradScaler | None:
    """Return the gradient scaler of an optimizer wrapper, if it is enabled."""
    scaler = getattr(wrapper, "loss_scaler", None)
    return scaler if scaler is not None and scaler.is_enabled() else None


def _any_not_finite(optimizer: Optimizer, losses: list[Tensor]) -> Tensor:
    """Return 1.0 if a loss or a gradient of this process is not finite, else 0.0."""
    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    if gradients:
        losses = [*losses, *torch._foreach_norm(gradients, torch.inf)]
    return (~torch.stack([v.float().abs().sum() for v in losses]).isfinite()).any().float()


def _find_problem(runner, losses: dict[int, Tensor]) -> str | None:
    """Return the first loss or gradient of this process that is not finite."""
    for iteration, loss in losses.items():
        if not loss.isfinite().all():
            return f"the loss is {loss.sum().item()} at iteration {iteration}"
    for name, parameter in runner.model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite at iteration {runner.iter + 1}"
    return None
