"""A loss or a gradient that is not finite stops the run before it reaches the weights."""

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmseg_ext.errors import RunError

_FIRST = 3  # iterations
_NO_LABELS = (
    f"the loss of the first {_FIRST} iterations is exactly 0: all their pixels are ignored. Look "
    "at the label maps (mmseg-ext check_dataset CONFIG), reduce_zero_label and ignore_index"
)


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stop before the optimizer's step where a loss or a gradient is not finite.

    Every loss since the last step counts. The message names the iteration, the loss or the
    parameter, and the image files. Nothing is saved: the last checkpoint is from before. With a
    gradient scaler (float16) such a step is skipped and the scale lowered, which is no failure;
    more than `max_skipped` in a row are one.

    A loss of exactly zero in each of the first three iterations is a warning: no pixel of theirs
    has a label that counts.
    """

    def __init__(self, max_skipped: int = 20):
        self.max_skipped = max_skipped
        self._skipped = 0  # steps in a row
        self._zeros = 0  # losses of zero among the first iterations
        self._losses: dict[int, torch.Tensor] = {}  # of the iterations since the last step
        self._images: list[str] = []

    def before_train(self, runner) -> None:
        wrapper = runner.optim_wrapper
        update, step = wrapper.update_params, wrapper.step

        def update_params(loss, *args, **kwargs):
            self._losses[runner.iter + 1] = loss.detach()
            if runner.iter < _FIRST and not loss.detach().any():
                self._zeros += 1
                if self._zeros == _FIRST:
                    runner.logger.warning(_NO_LABELS)
            return update(loss, *args, **kwargs)

        def checked_step(**kwargs):
            losses, self._losses, images, self._images = self._losses, {}, self._images, []
            scaler = getattr(wrapper, "loss_scaler", None)
            problem = None
            if scaler is None or not scaler.is_enabled():
                problem = _bad_loss(losses) or _bad_gradient(runner, wrapper.optimizer)
            if problem is None:
                self._skipped += 1
                step(**kwargs)  # an optimizer that does step sets this to 0
            if self._skipped > self.max_skipped:
                problem = (
                    f"the gradient scaler skipped {self._skipped} steps in a row, up to iteration "
                    f"{runner.iter + 1}, its scale now being {scaler.get_scale():g}"
                )
            if problem is not None:
                raise RunError(
                    f"{problem}; the weights are as they were before. Images of the batch: "
                    f"{', '.join(images) or 'unknown'}. --resume goes on from the last checkpoint, "
                    "and comes to the same batch"
                )

        wrapper.update_params, wrapper.step = update_params, checked_step
        wrapper.optimizer.register_step_post_hook(lambda *_: setattr(self, "_skipped", 0))

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        samples = data_batch.get("data_samples", ()) if isinstance(data_batch, dict) else ()
        self._images += [s.metainfo["img_path"] for s in samples if "img_path" in s.metainfo]


def _bad_loss(losses: dict[int, torch.Tensor]) -> str | None:
    for iteration, loss in losses.items():
        if not loss.isfinite().all():
            return f"the loss is {loss.sum().item()} at iteration {iteration}"
    return None


def _bad_gradient(runner, optimizer) -> str | None:
    """Looks at the gradients' sums, in one number, and for a name where that is not finite."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    sums = [p.grad.float().sum() for p in parameters if p.grad is not None]
    if not sums or torch.stack(sums).isfinite().all():
        return None
    for name, parameter in runner.model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite at iteration {runner.iter + 1}"
    return None  # finite ones whose sum is not
