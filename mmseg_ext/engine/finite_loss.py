"""A loss or a gradient that is no number stops the run before it reaches the weights."""

import math

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmseg_ext.errors import NonFiniteLoss


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stop before the optimizer's step where a loss or a gradient is not finite.

    Looked at are the gradients and every loss since the last step. The message names the
    iteration, the loss or the parameter, and the image files of the batches. Nothing is saved, so
    that the last checkpoint is from before. With a gradient scaler (float16) a loss or
    gradient that is not finite makes the scaler skip the step and lower its scale, which is not a
    failure; more than `max_skipped` such steps in a row are.

    Both are read after the backward pass has been queued, where the step waits for it anyway.

    Raises:
        ValueError: for `max_skipped` below 0.
    """

    def __init__(self, max_skipped: int = 20):
        if max_skipped < 0:
            raise ValueError(f"max_skipped must be at least 0, not {max_skipped}")
        self.max_skipped = max_skipped
        self._skipped = 0
        self._losses: list[tuple[int, torch.Tensor]] = []
        self._images: list[str] = []  # of the batches since the last step
        self._last_images: list[str] = []
        self._stepped = False

    def before_train(self, runner) -> None:
        wrapper = runner.optim_wrapper
        update, step = wrapper.update_params, wrapper.step

        def update_params(loss, *args, **kwargs):
            self._losses.append((runner.iter + 1, loss.detach()))
            return update(loss, *args, **kwargs)

        def checked_step(**kwargs):
            self._before_step(runner, wrapper)
            self._stepped = False
            step(**kwargs)
            self._after_step(runner, wrapper)

        wrapper.update_params, wrapper.step = update_params, checked_step
        wrapper.optimizer.register_step_post_hook(self._note_step)

    def _note_step(self, *args) -> None:
        self._stepped = True

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        self._images += image_files(data_batch)

    def _before_step(self, runner, wrapper) -> None:
        values = [(iteration, loss.sum().item()) for iteration, loss in self._losses]
        images, self._losses, self._images = self._images, [], []
        bad = [f"{value} at iteration {i}" for i, value in values if not math.isfinite(value)]
        self._last_images = images
        if _scales(wrapper):
            return
        what = f"the loss is {', '.join(bad)}" if bad else self._bad_gradient(runner, wrapper)
        if what:
            raise NonFiniteLoss(
                f"{what}; the weights are as they were before it. Images of "
                f"the batch: {', '.join(images) or 'unknown'}. --resume goes on from the last "
                "checkpoint, and comes to the same batch"
            )

    def _bad_gradient(self, runner, wrapper) -> str | None:
        """Looks at their sums, in one number, and for a name where that is not finite."""
        parameters = [p for group in wrapper.optimizer.param_groups for p in group["params"]]
        parameters = [p for p in parameters if p.grad is not None]
        sums = [p.grad.float().sum() for p in parameters]
        if not sums or torch.stack(sums).isfinite().all():
            return None
        bad = [id(p) for p in parameters if not p.grad.isfinite().all()]
        names = [name for name, p in runner.model.named_parameters() if id(p) in bad]
        if not names:  # finite ones whose sum is not
            return None
        return f"the gradient of {names[0]} is not finite at iteration {runner.iter + 1}"

    def _after_step(self, runner, wrapper) -> None:
        if not _scales(wrapper):
            return
        self._skipped = 0 if self._stepped else self._skipped + 1
        if self._skipped > self.max_skipped:
            raise NonFiniteLoss(
                f"the gradient scaler skipped {self._skipped} steps in a row, up to iteration "
                f"{runner.iter + 1}, its scale now being {wrapper.loss_scaler.get_scale():g}: the "
                "losses or gradients are not finite. Images of the last batch: "
                f"{', '.join(self._last_images) or 'unknown'}"
            )


def _scales(wrapper) -> bool:
    scaler = getattr(wrapper, "loss_scaler", None)
    return scaler is not None and scaler.is_enabled()


def image_files(data_batch: object) -> list[str]:
    """The image files of a batch of mmsegmentation's data samples."""
    samples = data_batch.get("data_samples", ()) if isinstance(data_batch, dict) else ()
    return [str(s.metainfo["img_path"]) for s in samples if "img_path" in s.metainfo]
