"""Parts of the training loop that do not wait for a GPU.

mmengine reads each logged value in each iteration, and copies batches while Python waits. Then the
GPU has nothing to do until Python has started the next operators.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mmengine.hooks import RuntimeInfoHook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils.data import DataLoader

# Iterations whose values stay on the GPU if nothing reads them.
_LONGEST = 1000


class WaitingHistory(HistoryBuffer):
    """A history with values on a GPU; whatever reads it gets them first, by `fetch`."""

    def __init__(self, history: HistoryBuffer, fetch: Callable[[], None]):
        self._fetch = fetch
        values, counts = history.data
        super().__init__(values, counts, history.max_length)  # type: ignore  # it accepts arrays

    @property
    def _log_history(self) -> Any:
        self._fetch()
        return self._values

    @_log_history.setter
    def _log_history(self, values: Any) -> None:
        self._values = values

    @property
    def _count_history(self) -> Any:
        self._fetch()
        return self._counts

    @_count_history.setter
    def _count_history(self, counts: Any) -> None:
        self._counts = counts

    def __reduce__(self):
        return HistoryBuffer, (*self.data, self.max_length)  # in checkpoints and copies


class WaitingInfoHook(RuntimeInfoHook):
    """mmengine's hook, with the losses left on a GPU until the log or a checkpoint needs them.

    Args:
        device_type: the device whose values stay there.
    """

    def __init__(self, device_type: str = "cuda"):
        self._device_type = device_type
        self._waiting: list[tuple[list[str], Tensor]] = []  # names and values of iterations

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        histories = runner.message_hub.log_scalars
        values = {f"train/{name}": value for name, value in (outputs or {}).items()}
        has_histories = all(name in histories for name in values)
        # The first time mmengine creates the histories.
        if not has_histories or not all(map(self._can_wait, values.values())):
            super().after_train_iter(runner, batch_idx, data_batch, outputs)
            return
        fetch = functools.partial(self._fetch, runner.message_hub)
        for name in values:
            if type(histories[name]) is HistoryBuffer:
                histories[name] = WaitingHistory(histories[name], fetch)
        if values:
            # A copy: the next iteration may overwrite the values.
            new = torch.stack([value.detach().reshape(()) for value in values.values()])
            self._waiting.append((list(values), new))
        if len(self._waiting) >= _LONGEST:
            fetch()

    def _can_wait(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.device.type != self._device_type:
            return False
        return value.is_floating_point() and value.numel() == 1

    def _fetch(self, hub: MessageHub) -> None:
        """Add the waiting values to their histories."""
        waiting = self._waiting
        self._waiting = []  # before a value is added, which reads the history
        if not waiting:
            return
        all_names: list[str] = []
        for names, _ in waiting:
            all_names.extend(names)
        numbers = torch.cat([values for _, values in waiting]).tolist()  # one copy from the GPU
        for name, number in zip(all_names, numbers, strict=True):
            hub.update_scalar(name, number)


def defer_losses(runner: Any) -> None:
    """Leave logged losses on a GPU until something reads them."""
    for i, hook in enumerate(runner.hooks):
        if type(hook) is RuntimeInfoHook:
            runner.hooks[i] = WaitingInfoHook()


class PinnableSamples(list):
    """Data samples whose tensors torch's loader pins, too: it pins no tensors inside of objects."""

    def pin_memory(self) -> list:
        return [_pinned(sample) for sample in self]


def _pinned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.pin_memory()
    if not isinstance(value, BaseDataElement):
        return value
    element = value.new()
    for name, part in value.items():
        element.set_data({name: _pinned(part)})
    return element


def pin_samples(loader: DataLoader) -> DataLoader:
    """Let `loader` also pin the tensors of data samples, if it pins images."""
    if loader.pin_memory:
        inner: Any = loader.collate_fn
        loader.collate_fn = functools.partial(_collate, inner=inner)
    return loader


def _collate(samples: Sequence, inner: Callable[[Sequence], Any]) -> Any:
    batch = inner(samples)
    if isinstance(batch, dict) and isinstance(batch.get("data_samples"), list):
        batch["data_samples"] = PinnableSamples(batch["data_samples"])
    return batch
