"""A hook that stops a run before a loss or gradient that is not finite reaches the weights."""

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from torch import Tensor

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
        self._images: list[str] = []  # of the iterations since the last step
        self._stepped = False

    def before_train(self, runner) -> None:
        wrapper = runner.optim_wrapper
        several = isinstance(wrapper, OptimWrapperDict)
        for each in wrapper.values() if several else (wrapper,):
            self._watch(runner, each)

    def _watch(self, runner, wrapper: OptimWrapper) -> None:
        update_params, step = wrapper.update_params, wrapper.step
        scaler = getattr(wrapper, "loss_scaler", None)
        scaled = scaler is not None and scaler.is_enabled()
        losses: dict[int, Tensor] = {}  # iteration -> loss, since the last step
        skipped = 0  # steps in a row

        def checked_update(loss, *args, **kwargs):
            losses[runner.iter + 1] = loss.detach()
            if runner.iter < _FIRST and not loss.detach().any():
                self._zeros += 1
                if self._zeros == _FIRST:
                    runner.logger.warning(_NO_LABELS)
            return update_params(loss, *args, **kwargs)

        def checked_step(**kwargs):
            nonlocal skipped
            finite = _all_finite([] if scaled else list(losses.values()), wrapper)
            if not finite and not scaled:
                # Every process reaches this line, and reports the first problem of all.
                problem = _find_problem(runner, losses)
                problem = problem and f"{problem}; {self._name_images()}"
                raise RunError(next(filter(None, dist.all_gather_object(problem)), "not finite"))
            skipped = 0 if finite else skipped + 1
            step(**kwargs)
            if skipped > self.max_skipped:
                raise RunError(
                    f"the gradient scaler skipped {skipped} steps in a row, up to iteration "
                    f"{runner.iter + 1}, and its scale is now {scaler.get_scale():g}; "
                    f"{self._name_images()}"
                )
            losses.clear()
            self._stepped = True

        # The methods of the instance are replaced, because mmengine has no hook between the
        # backward pass and the step. torch's step hooks run after the gradients are clipped, and
        # clipping makes all gradients non-finite.
        wrapper.update_params, wrapper.step = checked_update, checked_step

    def _name_images(self) -> str:
        images = ", ".join(self._images) or "unknown"
        return (
            f"the weights are unchanged. Images of the batch: {images}. --resume continues from "
            "the last checkpoint and reaches the same batch"
        )

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if self._stepped:
            self._images, self._stepped = [], False
        samples = data_batch.get("data_samples", ()) if isinstance(data_batch, dict) else ()
        self._images += [s.metainfo["img_path"] for s in samples if "img_path" in s.metainfo]


def _all_finite(losses: list[Tensor], wrapper: OptimWrapper) -> bool:
    """Return whether the losses and gradients of all processes are finite."""
    groups = wrapper.optimizer.param_groups
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    if gradients:
        losses = [*losses, *torch._foreach_norm(gradients, torch.inf)]
    failed = (~torch.stack([v.float().abs().sum() for v in losses]).isfinite()).any().float()
    dist.all_reduce(failed, "max")
    return not failed.item()


def _find_problem(runner, losses: dict[int, Tensor]) -> str | None:
    """Return the first loss or gradient of this process that is not finite."""
    for iteration, loss in losses.items():
        if not loss.isfinite().all():
            return f"the loss is {loss.sum().item()} at iteration {iteration}"
    for name, parameter in runner.model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite at iteration {runner.iter + 1}"
    return None
