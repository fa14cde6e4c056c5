"""A hook that stops a run before a loss or gradient that is not finite reaches the weights.

Most optimizers can start a step only when the check has passed. To read its result, Python waits
until the GPU has finished everything. Fused optimizers read `found_inf` on the GPU, and change
nothing if it is 1. Python then reads the result before the next step, while the GPU computes.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from mmengine import dist
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.hooks import RemovableHandle

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.durable.optimizer_groups import single_wrappers
from mmseg_ext.durable.runner import DurableRunner
from mmseg_ext.errors import RunError

# Losses in a row that a gradient scaler may skip; it halves its scale of 65,536 for each.
_MOST_SKIPPED = 20


class _Batch(NamedTuple):
    """The loss of an iteration, and what names its batch in an error."""

    iteration: int
    loss: Tensor
    images: list[str]
    labels: list[Tensor]  # maps of segmentors


@dataclass
class _Check:
    """The result of a check, and the values that name a problem after the gradients are removed."""

    iteration: int
    batches: list[_Batch]
    norms: dict[nn.Parameter, Tensor]  # the largest absolute values of the gradients
    failed: Tensor  # 1.0 or 0.0, the same in every process
    copied: Any = None  # the event after which `failed` has arrived from the GPU


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stops the run before an optimizer step if a loss or a gradient is not finite.

    All losses since the last step are checked, in every process, with one synchronization per step.
    The message names the iteration, the loss or the parameter, and the image files. Nothing is
    saved: the last checkpoint is from before. Gradients are checked before they are clipped, which
    would turn infinity into a number. A float16 gradient scaler skips such steps and lowers its
    scale; the hook then stops the run if no loss has been finite for twenty iterations, when it
    saves, validates or ends.

    Fused SGD, Adam and AdamW of a `DurableRunner` skip the step without the synchronization. The
    run then stops before the next step, or before it saves, validates or ends.
    """

    def __init__(self):
        self._stepped = False  # since the last batch
        self._batches: list[_Batch] = []  # since the last step
        self._handles: list[RemovableHandle] = []
        self._optimizers: list[Any] = []
        self._waits = True  # for the result, before the step
        self._is_checked = False  # the step that is computed now, before its gradients were clipped
        self._clipped: list[tuple[Any, Any]] = []  # wrappers, and their own `step`
        self._scaled = False  # by a float16 gradient scaler
        self._failures: Any = 0  # losses that are not finite, since the last finite one
        self._pending: _Check | None = None  # of the last step

    def before_train(self, runner) -> None:
        for wrapper in single_wrappers(runner.optim_wrapper):
            scaler = getattr(wrapper, "loss_scaler", None)
            if scaler is not None and scaler.is_enabled():
                self._scaled = True
                continue
            check = functools.partial(self._check_step, runner)
            self._handles.append(wrapper.optimizer.register_step_pre_hook(check))
            self._optimizers.append(wrapper.optimizer)
            if wrapper.clip_grad_kwargs:
                self._clipped.append((wrapper, wrapper.step))
                wrapper.step = self._checked_before_clipping(runner, wrapper)
        # Other Runners save without a hook in every process.
        is_durable = isinstance(runner, DurableRunner)
        self._waits = not (is_durable and all(map(_skips_steps, self._optimizers)))

        # A function, because a copy of the model would copy the Runner of a method or a partial.
        def record(model: BaseModel, inputs, batch: dict, outputs) -> None:
            has_losses = isinstance(outputs, dict) and any("loss" in str(key) for key in outputs)
            if model.training and has_losses:
                loss = model.parse_losses(outputs)[0]
                self._record(runner.iter + 1, loss.detach(), batch)

        model = unwrap_model(runner.model)
        self._handles.append(model.register_forward_hook(record, with_kwargs=True))

    def before_state_dict(self, runner) -> None:
        """Check the last step, and an unfinished accumulation, whose gradients are saved."""
        self._require_passed(runner)
        if self._batches and not self._stepped:
            for optimizer in self._optimizers:
                self._pending = self._check(runner, optimizer)
                self._require_passed(runner)

    def before_val(self, runner) -> None:
        self._require_passed(runner)

    def after_train(self, runner) -> None:
        self._require_passed(runner)
        for wrapper, step in self._clipped:
            wrapper.step = step
        for handle in self._handles:
            handle.remove()
        for optimizer in self._optimizers:
            vars(optimizer).pop("found_inf", None)

    def _record(self, iteration: int, loss: Tensor, batch: dict) -> None:
        if self._stepped:
            self._batches = []
            self._stepped = False
        samples = batch.get("data_samples") or ()
        images = [sample.get("img_path", "unknown") for sample in samples]
        labels = [sample.gt_sem_seg.data for sample in samples if "gt_sem_seg" in sample]
        self._batches.append(_Batch(iteration, loss, images, labels))
        if self._scaled:
            self._failures = (self._failures + 1) * (~loss.isfinite().all())
            if not self._optimizers:  # the newest loss and its images are enough
                self._stepped = True

    def _checked_before_clipping(self, runner, wrapper: Any) -> Any:
        """Return the wrapper's `step`, after a check that its optimizer then leaves out."""
        step = wrapper.step

        @functools.wraps(step)  # also the mark of mmengine's schedules, which have wrapped it
        def checked(*args, **kwargs) -> None:
            self._check_step(runner, wrapper.optimizer)
            self._is_checked = True
            try:
                step(*args, **kwargs)
            finally:
                self._is_checked = False

        return checked

    def _check_step(self, runner, optimizer: Any, *arguments: Any) -> None:
        if self._is_checked:
            return
        self._require_passed(runner)  # of the step before
        check = self._check(runner, optimizer)
        self._pending = check
        if self._waits:
            self._require_passed(runner)
        else:
            optimizer.found_inf = check.failed
            if check.failed.is_cuda:
                # In pinned memory, so neither the host nor the GPU waits.
                check.failed = check.failed.to("cpu", non_blocking=True)
                check.copied = torch.cuda.current_stream().record_event()
        self._stepped = True

    def _check(self, runner, optimizer: Optimizer) -> _Check:
        norms = _gradient_norms(optimizer)
        values = [batch.loss.float().abs().sum() for batch in self._batches]
        values.extend(norms.values())
        failed = (~torch.stack(values).isfinite()).any().float()
        dist.all_reduce(failed, "max")
        return _Check(runner.iter + 1, self._batches, norms, failed)

    def _require_passed(self, runner) -> None:
        """Raise a RunError if the pending check has failed, in every process."""
        if self._scaled and isinstance(self._failures, Tensor):
            failures = self._failures.float()
            dist.all_reduce(failures, "max")
            if failures >= _MOST_SKIPPED:
                self._pending = _Check(runner.iter, self._batches, {}, torch.ones(()))
        check = self._pending
        self._pending = None
        if check is None:
            return
        if check.copied is not None:
            check.copied.synchronize()
        if not check.failed:
            return
        # Every process reaches this line, and reports one problem of all.
        problem = _find_problem(runner, check)
        if problem is not None:
            ignored = getattr(unwrap_model(runner.model), "decode_head", None)
            ignored = getattr(ignored, "ignore_index", 255)
            images = [name for batch in check.batches for name in batch.images]
            labels = [label for batch in check.batches for label in batch.labels]
            if labels and all(bool((label == ignored).all()) for label in labels):
                problem += (
                    f", and no pixel of the batch counts (all labels are {ignored}); annotate more "
                    "of these images, or use a loss that is 0 then"
                )
            problem += (
                "; the weights are unchanged. Images of the batch: "
                f"{', '.join(images) or 'unknown'}. --resume continues from the last "
                "checkpoint and reaches the same batch"
            )
        problems = [text for text in dist.all_gather_object(problem) if text]
        # Averaged gradients have the loss of another process.
        losses = [text for text in problems if text.startswith("the loss")]
        raise RunError((losses + problems + ["not finite"])[0])


def _skips_steps(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's kernels skip a step if its `found_inf` is 1."""
    if type(optimizer) not in (SGD, Adam, AdamW):
        return False
    for group in optimizer.param_groups:
        devices = {parameter.device.type for parameter in group["params"]}
        if not group.get("fused") or not devices <= {"cpu", "cuda"}:
            return False
    return True


def _gradient_norms(optimizer: Optimizer) -> dict[nn.Parameter, Tensor]:
    """Return the largest absolute value of each gradient."""
    parameters: list[nn.Parameter] = []
    gradients: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None or parameter.numel() == 0:
                continue
            if gradient.is_sparse:
                gradient = gradient.coalesce().values()
            parameters.append(parameter)
            gradients.append(gradient)
    if not gradients:
        return {}
    norms = torch._foreach_norm(gradients, torch.inf)
    return dict(zip(parameters, norms, strict=True))


def _find_problem(runner, check: _Check) -> str | None:
    """Return the first loss or gradient of this process that is not finite."""
    for batch in check.batches:
        if not batch.loss.isfinite().all():
            return f"the loss is {batch.loss.sum().item()} at iteration {batch.iteration}"
    for name, parameter in runner.model.named_parameters():
        if parameter in check.norms and not check.norms[parameter].isfinite():
            return f"the gradient of {name} is not finite at iteration {check.iteration}"
    return None
